#pragma once
// Addresses as Python hands them over: numbers, since no buffer object spans a whole benchmark.

#include <cstddef>
#include <cstdint>

namespace infinistore {

inline std::byte* at_address(std::uint64_t address) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it came from a pointer, on the other side of Python
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

}  // namespace infinistore
