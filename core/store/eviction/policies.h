#pragma once
// The table of eviction policies: their names and makers.

#include <memory>
#include <span>
#include <string_view>

#include "core/store/eviction/policy.h"

namespace infinistore {

std::span<const std::string_view> eviction_policy_names() noexcept;

// nullptr if no policy has that name.
std::unique_ptr<EvictionScheme> make_eviction_scheme(std::string_view name);

std::unique_ptr<EvictionScheme> make_lru();
std::unique_ptr<EvictionScheme> make_reuse();

}  // namespace infinistore
