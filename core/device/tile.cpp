#include "core/device/tile.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/checksum.h"

namespace infinistore {
namespace {

constexpr std::uint64_t kWordBytes = 8;

}  // namespace

void TileList::begin_item(std::uint64_t position) {
  firsts_.push_back(tiles_.size());
  begin_ = position;
  next_ = position;
}

void TileList::add(std::uint64_t device, std::uint64_t host, std::uint64_t bytes) {
  while (bytes > 0) {
    // Words are counted from the item's first byte.
    const std::uint64_t in_word = (next_ - begin_) % kWordBytes;
    std::uint64_t step = 0;
    if (in_word > 0 || bytes < kWordBytes) {
      step = std::min(bytes, kWordBytes - in_word);
    } else {
      step = std::min<std::uint64_t>(bytes / kWordBytes * kWordBytes, kTileBytesMax);
    }
    tiles_.push_back({.device = device,
                      .host = host,
                      .position = next_,
                      .bytes = static_cast<std::uint32_t>(step),
                      .unused = 0});
    device += step;
    host += step;
    next_ += step;
    bytes -= step;
  }
}

std::vector<std::uint64_t> TileList::sums(std::span<const std::uint64_t> results) const {
  std::vector<std::uint64_t> sums;
  sums.reserve(items());
  for (std::size_t i = 0; i < items(); ++i) {
    const std::size_t first = firsts_[i];
    const std::size_t end = i + 1 < items() ? firsts_[i + 1] : tiles_.size();
    sums.push_back(
        sum_of(tiles().subspan(first, end - first), results.subspan(first, end - first)));
  }
  return sums;
}

std::uint64_t TileList::sum_of(std::span<const Tile> tiles,
                               std::span<const std::uint64_t> results) const {
  std::uint64_t sum = 0;
  std::array<std::byte, kWordBytes> word{};
  std::size_t have = 0;
  std::uint64_t position = 0;  // of the begun word
  const auto end_word = [&] {
    sum += checksum_scalar(Bytes(word).first(have), position);
    have = 0;
  };
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    if (tiles[i].bytes >= kWordBytes) {
      sum += results[i];
      continue;
    }
    if (have == 0) position = tiles[i].position;
    std::memcpy(word.data() + have, &results[i], tiles[i].bytes);
    have += tiles[i].bytes;
    if (have == kWordBytes) end_word();
  }
  if (have > 0) end_word();
  return sum;
}

}  // namespace infinistore
