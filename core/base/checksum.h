#pragma once
// Checksum: the position-keyed sum of docs/protocol.md section 6, alone or while copying.
//
// Sums of adjoining ranges whose lengths are multiples of 8 add up (mod 2^64) to the whole's.
// Picks the fastest version for this CPU at the first call; all versions give the same sums.

#include <cstddef>
#include <cstdint>

#include "core/base/bytes.h"

namespace infinistore {

// The sum of `bytes`, which begin at byte `position` of their value.
std::uint64_t checksum(Bytes bytes, std::uint64_t position) noexcept;

// Copies `size` bytes and returns their sum.  The ranges must not overlap.
std::uint64_t copy_with_checksum(std::byte* to, const std::byte* from, std::size_t size,
                                 std::uint64_t position) noexcept;

// Copies `size` bytes; past the caches where that is faster.  The ranges must not overlap.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t size) noexcept;

// The plain version that the others are tested against.
std::uint64_t checksum_scalar(Bytes bytes, std::uint64_t position) noexcept;

}  // namespace infinistore
