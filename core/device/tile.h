#pragma once
// Tile: what a warp of a GPU copies at a time.  TileList: the tiles of many items.
//
// An item's pieces lie anywhere on either side, at any address and of any length.  Where a word of
// its sum is cut by a piece's end, its bytes become tiles of their own, which tell the bytes in
// place of a sum; they are put together here.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace infinistore {

// As in copy_tiles.cu.
struct Tile {
  std::uint64_t device;    // address in the GPU's memory
  std::uint64_t host;      // address in the host's, of registered memory
  std::uint64_t position;  // of the tile's first byte in its value
  std::uint32_t bytes;     // a multiple of 8, or below 8
  std::uint32_t unused;
};
static_assert(sizeof(Tile) == 32);

// Two passes of a warp's loads in flight: smaller ones cost more of their own description, larger
// ones leave warps without work at a launch's end.
inline constexpr std::uint32_t kTileBytesMax = 8192;

class TileList {
 public:
  // The next item: a range of a value, from byte `position` of it on.
  void begin_item(std::uint64_t position);
  // The item's next bytes.
  void add(std::uint64_t device, std::uint64_t host, std::uint64_t bytes);

  std::span<const Tile> tiles() const noexcept { return tiles_; }
  std::size_t items() const noexcept { return firsts_.size(); }
  // The checksum of each item, from what the kernel told of each tile.
  std::vector<std::uint64_t> sums(std::span<const std::uint64_t> results) const;

 private:
  std::uint64_t sum_of(std::span<const Tile> tiles, std::span<const std::uint64_t> results) const;

  std::vector<Tile> tiles_;
  std::vector<std::size_t> firsts_;  // of each item
  std::uint64_t begin_ = 0;          // position of the last item's first byte
  std::uint64_t next_ = 0;           // and of its next
};

}  // namespace infinistore
