#pragma once
// Checksums of ranges of a sealed value, from the sums that its parts were put with.

#include <cstdint>

#include "core/base/checksum.h"
#include "core/base/result.h"
#include "core/memory/pool.h"
#include "core/store/entry.h"

namespace infinistore {

// As Lease::range_checksum().  The entry must be pinned.
Result<std::uint64_t> checksum_of_range(const Pool& pool, const Entry& entry, Range range);

// Sums the bytes of a range afresh; its words may straddle extents.
void add_bytes(const Pool& pool, const Extents& extents, Range range,
               RunningChecksum& sum) noexcept;
std::uint64_t sum_bytes(const Pool& pool, const Extents& extents, Range range) noexcept;

}  // namespace infinistore
