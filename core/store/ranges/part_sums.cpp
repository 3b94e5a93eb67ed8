#include "core/store/ranges/part_sums.h"

#include <algorithm>
#include <span>

namespace infinistore {
namespace {

constexpr std::size_t kWordBytes = 8;

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

void add_bytes(const Pool& pool, const Extents& extents, Range range,
               RunningChecksum& sum) noexcept {
  std::uint64_t start = 0;  // of the extent, in the value
  for (const Extent& extent : extents) {
    const std::uint64_t from = std::max(range.offset, start);
    const std::uint64_t to = std::min(range.offset + range.bytes, start + extent.bytes);
    if (from < to) sum.add(pool.bytes_of(extent).subspan(from - start, to - from));
    start += extent.bytes;
  }
}

std::uint64_t sum_bytes(const Pool& pool, const Extents& extents, Range range) noexcept {
  RunningChecksum sum(range.offset);
  add_bytes(pool, extents, range, sum);
  return sum.finish();
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
