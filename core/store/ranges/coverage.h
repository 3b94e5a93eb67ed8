#pragma once
// Coverage: which ranges of a value are being filled, and which are, with their checksums.
//
// Not thread-safe.  Ranges do not overlap; an equal repeat is recognised.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/result.h"
#include "core/memory/inline_vector.h"
#include "core/store/entry.h"

namespace infinistore {

class Coverage {
 public:
  explicit Coverage(std::uint64_t value_bytes) noexcept : value_bytes_(value_bytes) {}

  // As Reservation::claim().
  Code claim(Range range);
  void filled(Range range, std::uint64_t checksum) noexcept;
  void unclaim(Range range) noexcept;

  bool is_claimed() const noexcept { return claimed_count_ > 0; }
  bool is_complete() const noexcept { return filled_bytes_ == value_bytes_; }
  std::uint64_t filled_bytes() const noexcept { return filled_bytes_; }
  std::vector<Range> filled_ranges() const;  // adjoining ones as one

  // Writes a complete value's checksums into its entry.
  void hand_over(Entry& entry) const;

 private:
  struct Piece {
    Range range;
    std::uint64_t checksum = 0;
    bool is_filled = false;
  };
  Piece* claimed_piece(Range range) noexcept;

  std::uint64_t value_bytes_;
  std::uint64_t filled_bytes_ = 0;
  std::size_t claimed_count_ = 0;
  InlineVector<Piece> pieces_;  // by offset
};

}  // namespace infinistore
