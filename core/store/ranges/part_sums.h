#pragma once
// Checksums of ranges of a sealed value, from the sums that its parts were put with.

#include <cstdint>

#include "core/base/result.h"
#include "core/memory/pool.h"
#include "core/store/entry.h"

namespace infinistore {

// As Lease::range_checksum().  The entry must be pinned.
Result<std::uint64_t> checksum_of_range(const Pool& pool, const Entry& entry, Range range);

// Sums the bytes of a range afresh; its words may straddle extents.
std::uint64_t sum_bytes(const Pool& pool, const Extents& extents, Range range) noexcept;

}  // namespace infinistore
