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

// Copies `size` bytes and returns their sum.  The ranges must not overlap.
std::uint64_t copy_with_checksum(std::byte* to, const std::byte* from, std::size_t size,
                                 std::uint64_t position) noexcept;

// Copies `size` bytes; past the caches where that is faster.  The ranges must not overlap.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t size) noexcept;

// Asks for the first lines of what will be read soon: blocks lie anywhere, and the first lines of
// each would be waited for.  Worth a quarter at 4 KiB, nothing from 64 KiB on (measured).
inline void expect(const std::byte* soon, std::size_t size) noexcept {
  constexpr std::size_t kAhead = 512;
  for (std::size_t at = 0; at < size && at < kAhead; at += 64) __builtin_prefetch(soon + at, 0, 2);
}

// The sum of a range that arrives in pieces of any lengths, in order.
class RunningChecksum {
 public:
  explicit RunningChecksum(std::uint64_t position) noexcept : position_(position) {}

  void add(Bytes bytes) noexcept { take(nullptr, bytes); }
  void copy(std::byte* to, Bytes from) noexcept { take(to, from); }  // adds `from` while copying it
  // Of all that was added; nothing may be added after.
  std::uint64_t finish() noexcept;

 private:
  void take(std::byte* to, Bytes from) noexcept;
  std::size_t fill_word(std::byte* to, Bytes from) noexcept;

  std::uint64_t position_;  // of the first byte that is not in sum_
  std::uint64_t sum_ = 0;
  std::array<std::byte, 8> word_{};  // begun, not complete
  std::size_t word_bytes_ = 0;
};

// The plain version that the others are tested against.
std::uint64_t checksum_scalar(Bytes bytes, std::uint64_t position) noexcept;

}  // namespace infinistore
