#include "core/device/tile.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>

#include "core/base/checksum.h"

namespace infinistore {
namespace {

// What the kernel tells of a tile.
std::uint64_t result_of(const Tile& tile) {
  const Bytes bytes(reinterpret_cast<const std::byte*>(tile.device), tile.bytes);
  if (tile.bytes >= 8) return checksum_scalar(bytes, tile.position);
  std::uint64_t raw = 0;
  std::memcpy(&raw, bytes.data(), bytes.size());
  return raw;
}

struct Item {
  std::uint64_t position;
  std::vector<std::byte> bytes;
};

std::uint64_t at(const std::vector<std::byte>& bytes, std::size_t offset) {
  return reinterpret_cast<std::uintptr_t>(bytes.data() + offset);
}

}  // namespace

TEST_CASE("the sums of items cut anywhere are those of their bytes, and every byte is named once") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    TileList list;
    std::vector<Item> items(1 + random() % 4);
    for (auto& item : items) {
      item = {random() % 1000, std::vector<std::byte>(1 + random() % 40000)};
      for (auto& byte : item.bytes) byte = static_cast<std::byte>(random());
      list.begin_item(item.position);
      const std::size_t piece_max = 1 + random() % (round % 2 == 0 ? 20 : 30000);
      for (std::size_t done = 0; done < item.bytes.size();) {
        const std::size_t step =
            std::min<std::size_t>(1 + random() % piece_max, item.bytes.size() - done);
        list.add(at(item.bytes, done), 1'000'000 + done, step);
        done += step;
      }
    }
    std::vector<std::uint64_t> results;
    for (const auto& tile : list.tiles()) results.push_back(result_of(tile));
    const auto sums = list.sums(results);
    REQUIRE(sums.size() == items.size());
    std::size_t tile = 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
      CHECK(sums[i] == checksum_scalar(items[i].bytes, items[i].position));
      for (std::size_t done = 0; done < items[i].bytes.size(); ++tile) {
        const auto& next = list.tiles()[tile];
        CHECK(next.device == at(items[i].bytes, done));
        CHECK(next.host == 1'000'000 + done);
        CHECK(next.position == items[i].position + done);
        CHECK((next.bytes < 8 || next.bytes % 8 == 0));
        CHECK(next.bytes <= kTileBytesMax);
        done += next.bytes;
      }
    }
    CHECK(tile == list.tiles().size());
  }
}

TEST_CASE("whole pages become tiles of the full size") {
  TileList list;
  list.begin_item(0);
  list.add(4096, 8192, 65536);
  CHECK(list.tiles().size() == 65536 / kTileBytesMax);
}

}  // namespace infinistore
