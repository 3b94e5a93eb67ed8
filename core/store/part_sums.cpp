#include "core/store/part_sums.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "core/base/checksum.h"

namespace infinistore {
namespace {

constexpr std::size_t kWordBytes = 8;

// Sums bytes that come in pieces whose bounds need not be those of words.
class PieceSum {
 public:
  explicit PieceSum(std::uint64_t position) noexcept : position_(position) {}

  void add(Bytes piece) noexcept {
    if (held_ > 0) {
      const std::size_t count = std::min(kWordBytes - held_, piece.size());
      std::memcpy(word_.data() + held_, piece.data(), count);
      held_ += count;
      piece = piece.subspan(count);
      if (held_ < kWordBytes) return;
      add_words(word_);
      held_ = 0;
    }
    const std::size_t tail = piece.size() % kWordBytes;
    add_words(piece.first(piece.size() - tail));
    if (tail > 0) std::memcpy(word_.data(), piece.data() + piece.size() - tail, tail);
    held_ = tail;
  }

  std::uint64_t sum() const noexcept {
    return held_ == 0 ? sum_ : sum_ + checksum(Bytes(word_).first(held_), position_);
  }

 private:
  void add_words(Bytes words) noexcept {
    if (words.empty()) return;
    sum_ += checksum(words, position_);
    position_ += words.size();
  }

  std::uint64_t position_;
  std::uint64_t sum_ = 0;
  std::array<std::byte, kWordBytes> word_{};  // the begun one
  std::size_t held_ = 0;
};

struct ValueParts {
  std::span<const Part> parts;
  std::uint64_t value_bytes;

  Range range_of(std::size_t part) const noexcept {
    const std::uint64_t end = part + 1 < parts.size() ? parts[part + 1].offset : value_bytes;
    return {.offset = parts[part].offset, .bytes = end - parts[part].offset};
  }
  std::size_t part_at(std::uint64_t offset) const noexcept {
    const auto above = std::ranges::upper_bound(parts, offset, {}, &Part::offset);
    return static_cast<std::size_t>(above - parts.begin()) - 1;
  }
};

}  // namespace

std::uint64_t sum_bytes(const Pool& pool, const Extents& extents, Range range) noexcept {
  PieceSum sum(range.offset);
  std::uint64_t start = 0;  // of the extent, in the value
  for (const Extent& extent : extents) {
    const std::uint64_t from = std::max(range.offset, start);
    const std::uint64_t to = std::min(range.offset + range.bytes, start + extent.bytes);
    if (from < to) sum.add(pool.bytes_of(extent).subspan(from - start, to - from));
    start += extent.bytes;
  }
  return sum.sum();
}

Result<std::uint64_t> checksum_of_range(const Pool& pool, const Entry& entry, Range range) {
  if (range.bytes == 0 || range.offset > entry.value_bytes ||
      range.bytes > entry.value_bytes - range.offset) {
    return Code::kInvalid;
  }
  const Part whole{.offset = 0, .checksum = entry.checksum};
  const ValueParts value{
      .parts = entry.parts ? std::span<const Part>(*entry.parts) : std::span<const Part>(&whole, 1),
      .value_bytes = entry.value_bytes};
  const std::size_t first = value.part_at(range.offset);
  const std::size_t last = value.part_at(range.offset + range.bytes - 1);
  const Range last_range = value.range_of(last);
  bool adds_up = value.parts[first].offset == range.offset &&
                 last_range.offset + last_range.bytes == range.offset + range.bytes;
  std::uint64_t sum = 0;
  for (std::size_t part = first; part <= last; ++part) {
    sum += value.parts[part].checksum;
    // A part that ends within a word has padded it: the whole's word is another one.
    if (part < last && value.range_of(part).bytes % kWordBytes != 0) adds_up = false;
  }
  if (adds_up) return sum;
  for (std::size_t part = first; part <= last; ++part) {
    if (sum_bytes(pool, entry.extents, value.range_of(part)) != value.parts[part].checksum) {
      return Code::kCorrupt;
    }
  }
  return sum_bytes(pool, entry.extents, range);
}

}  // namespace infinistore
