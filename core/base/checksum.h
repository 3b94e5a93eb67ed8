#pragma once
// Checksum: the position-keyed sum of docs/protocol.md section 6, alone or while copying.
//
// Sums of adjoining ranges whose lengths are multiples of 8 add up (mod 2^64) to the whole's.
// Picks the fastest version for this CPU at the first call; all versions give the same sums.

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/bytes.h"

namespace infinistore {

// The sum of `bytes`, which begin at byte `position` of their value.
std::uint64_t checksum(Bytes bytes, std::uint64_t position) noexcept;

// Copies `size` bytes and returns their sum.  The ranges must not overlap.  `next`: what will be
// read after it, or null; it is asked of the memory in advance, for as many bytes.
std::uint64_t copy_with_checksum(std::byte* to, const std::byte* from, std::size_t size,
                                 std::uint64_t position, const std::byte* next = nullptr) noexcept;

// Copies in the same way, and sums nothing.
void copy_without_checksum(std::byte* to, const std::byte* from, std::size_t size,
                           const std::byte* next = nullptr) noexcept;

// The sum of a range that arrives in pieces of any lengths, in order.
class RunningChecksum {
 public:
  explicit RunningChecksum(std::uint64_t position) noexcept : position_(position) {}

  void add(Bytes bytes) noexcept { take(nullptr, bytes, nullptr); }
  // Adds `from` while copying it; `next` as for copy_with_checksum().
  void copy(std::byte* to, Bytes from, const std::byte* next = nullptr) noexcept {
    take(to, from, next);
  }
  // Of all that was added; nothing may be added after.
  std::uint64_t finish() noexcept;

 private:
  void take(std::byte* to, Bytes from, const std::byte* next) noexcept;
  std::size_t fill_word(std::byte* to, Bytes from) noexcept;

  std::uint64_t position_;  // of the first byte that is not in sum_
  std::uint64_t sum_ = 0;
  std::array<std::byte, 8> word_{};  // begun, not complete
  std::size_t word_bytes_ = 0;
};

// The plain version that the others are tested against.
std::uint64_t checksum_scalar(Bytes bytes, std::uint64_t position) noexcept;

}  // namespace infinistore
