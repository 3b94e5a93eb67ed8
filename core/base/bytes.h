#pragma once
// Bytes: borrowed views of memory.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace infinistore {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

inline Bytes bytes_of(std::string_view text) noexcept {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string_view text_of(Bytes bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace infinistore
