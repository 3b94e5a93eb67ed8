#pragma once
// Extent: an address inside the pool.  A value lies in one or a few of them, in order.

#include <cstddef>
#include <cstdint>

#include "core/base/limits.h"
#include "core/memory/inline_vector.h"

namespace infinistore {

struct Extent {
  std::uint32_t region = 0;
  std::uint64_t offset = 0;  // bytes from the region's start, a multiple of kPageBytesMin
  std::uint64_t bytes = 0;   // bytes used; the page under it may be longer

  bool operator==(const Extent&) const = default;
};

using Extents = InlineVector<Extent>;  // mostly one

// Their count travels in two bytes.
inline constexpr std::size_t kExtentsPerValueMax = 65'535;

// The bytes that a value takes from the pool.  `bytes` is at most a pool's size, so this cannot
// wrap.
constexpr std::uint64_t whole_pages(std::uint64_t bytes) noexcept {
  return (bytes + kPageBytesMin - 1) / kPageBytesMin * kPageBytesMin;
}

}  // namespace infinistore
