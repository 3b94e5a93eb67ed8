#pragma once
// UTF-8, as section 3.9 of the Unicode standard has it: the shortest form, no surrogates.

#include <string_view>

namespace infinistore {

bool is_utf8(std::string_view text) noexcept;

}  // namespace infinistore
