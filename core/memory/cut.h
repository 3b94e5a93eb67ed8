#pragma once
// cut: the part of a value's extents that a range of it lies in.

#include <cstdint>

#include "core/memory/extent.h"

namespace infinistore {

// The range lies within the extents.
inline Extents cut(const Extents& extents, std::uint64_t range_offset, std::uint64_t range_bytes) {
  Extents part;
  std::uint64_t skip = range_offset;
  std::uint64_t left = range_bytes;
  for (const auto& extent : extents) {
    if (left == 0) break;
    if (skip >= extent.bytes) {
      skip -= extent.bytes;
      continue;
    }
    const std::uint64_t room = extent.bytes - skip;
    const std::uint64_t step = left < room ? left : room;
    part.push_back({.region = extent.region, .offset = extent.offset + skip, .bytes = step});
    left -= step;
    skip = 0;
  }
  return part;
}

}  // namespace infinistore
