#pragma once
// Extent: an address inside the pool.  A value lies in one or a few of them, in order.

#include <cstdint>
#include <vector>

namespace infinistore {

struct Extent {
  std::uint32_t region = 0;
  std::uint64_t offset = 0;  // bytes from the region's start, a multiple of kPageBytesMin
  std::uint64_t bytes = 0;   // bytes used; the page under it may be longer

  bool operator==(const Extent&) const = default;
};

using Extents = std::vector<Extent>;

}  // namespace infinistore
