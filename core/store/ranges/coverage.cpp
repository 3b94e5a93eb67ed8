#include "core/store/ranges/coverage.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/limits.h"

namespace infinistore {
namespace {

std::uint64_t end_of(Range range) noexcept { return range.offset + range.bytes; }

}  // namespace

Code Coverage::claim(Range range) {
  if (range.bytes == 0 || range.offset > value_bytes_ ||
      range.bytes > value_bytes_ - range.offset) {
    return Code::kInvalid;
  }
  const auto at = std::ranges::lower_bound(pieces_, range.offset, {},
                                           [](const Piece& piece) { return piece.range.offset; });
  if (at != pieces_.end() && at->range == range) return Code::kExists;
  if (at != pieces_.end() && at->range.offset < end_of(range)) return Code::kInvalid;
  if (at != pieces_.begin() && end_of(std::prev(at)->range) > range.offset) return Code::kInvalid;
  if (pieces_.size() >= kRangesPerValueMax) return Code::kInvalid;
  pieces_.insert(at, {.range = range});
  ++claimed_count_;
  return Code::kOk;
}

Coverage::Piece* Coverage::claimed_piece(Range range) noexcept {
  const auto at = std::ranges::lower_bound(pieces_, range.offset, {},
                                           [](const Piece& piece) { return piece.range.offset; });
  KV_CHECK(at != pieces_.end() && at->range == range && !at->is_filled);
  return at;
}

void Coverage::filled(Range range, std::uint64_t checksum) noexcept {
  const auto piece = claimed_piece(range);
  piece->checksum = checksum;
  piece->is_filled = true;
  filled_bytes_ += range.bytes;
  --claimed_count_;
}

void Coverage::unclaim(Range range) noexcept {
  pieces_.erase(claimed_piece(range));
  --claimed_count_;
}

std::vector<Range> Coverage::filled_ranges() const {
  std::vector<Range> ranges;
  for (const Piece& piece : pieces_) {
    if (!piece.is_filled) continue;
    if (!ranges.empty() && end_of(ranges.back()) == piece.range.offset) {
      ranges.back().bytes += piece.range.bytes;
    } else {
      ranges.push_back(piece.range);
    }
  }
  return ranges;
}

void Coverage::hand_over(Entry& entry) const {
  KV_CHECK(is_complete() && !is_claimed());
  if (pieces_.size() == 1) {
    entry.checksum = pieces_.front().checksum;
    return;
  }
  std::vector<Part> parts;
  parts.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    parts.push_back({.offset = piece.range.offset, .checksum = piece.checksum});
  }
  entry.parts = std::make_unique<const std::vector<Part>>(std::move(parts));
}

}  // namespace infinistore
