#include "core/store/ranges/part_sums.h"

#include <doctest/doctest.h>

#include <random>

#include "core/store/store_testing.h"

namespace infinistore {
namespace {

using testing::fill;
using testing::options_with;
using testing::pool_of;
using testing::still_clock;

std::string random_text(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);  // NOLINT: a fixed seed is the point
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// A store whose free pages are scattered, so that a value lies in many extents.
struct ScatteredStore {
  Store store{pool_of(1 << 20), options_with("lru"), still_clock()};

  ScatteredStore() {
    for (int i = 0; i < 256; ++i) put_page(i);
    for (int i = 0; i < 256; i += 2) CHECK(store.erase(0, "page" + std::to_string(i)));
  }
  void put_page(int i) {
    CHECK(testing::put(store, 0, "page" + std::to_string(i), std::string(4096, 'x')) == Code::kOk);
  }
  // Puts `text` in ranges that end at `ends`.
  Lease put(std::string_view text, const std::vector<std::uint64_t>& ends) {
    auto reservation = store.reserve({.key = "value", .value_bytes = text.size()});
    REQUIRE(reservation.ok());
    std::uint64_t start = 0;
    for (const std::uint64_t end : ends) {
      REQUIRE(fill(store, *reservation, start, text.substr(start, end - start)) == Code::kOk);
      start = end;
    }
    REQUIRE(std::move(*reservation).seal() == Code::kOk);
    return std::move(*store.find(0, "value"));
  }
};

TEST_CASE("every range carries the sum that its reader computes, however it was put") {
  const std::string text = random_text(30'000, 1);
  for (const auto& ends : std::vector<std::vector<std::uint64_t>>{
           {30'000}, {8'000, 16'000, 30'000}, {5, 13, 4'099, 20'000, 30'000}}) {
    ScatteredStore scattered;
    const Lease lease = scattered.put(text, ends);
    CHECK(lease.extents().size() > 1);
    for (const Range range : {Range{0, 30'000}, Range{0, 8'000}, Range{8'000, 8'000},
                              Range{8'000, 22'000}, Range{5, 8}, Range{5, 4'094}, Range{0, 13},
                              Range{13, 1}, Range{3, 29'000}, Range{4'093, 10}, Range{29'999, 1}}) {
      CAPTURE(range.offset);
      CAPTURE(range.bytes);
      auto sum = lease.range_checksum(range);
      REQUIRE(sum.ok());
      CHECK(*sum == checksum(bytes_of(text).subspan(range.offset, range.bytes), range.offset));
    }
  }
}

TEST_CASE("a changed byte is found by every range whose put range has it") {
  const std::string text = random_text(30'000, 2);
  ScatteredStore scattered;
  const Lease lease = scattered.put(text, {8'000, 16'000, 30'000});
  testing::write_at(scattered.store.pool(), lease.extents(), 9'000,
                    bytes_of(text[9'000] == 'a' ? "b" : "a"));
  CHECK(lease.range_checksum({.offset = 8'100, .bytes = 10}).code() == Code::kCorrupt);
  CHECK(lease.range_checksum({.offset = 7'999, .bytes = 2}).code() == Code::kCorrupt);
  CHECK(lease.range_checksum({.offset = 100, .bytes = 10}).ok());
  // The server does not read what it has the sum of: the receiver finds it.
  auto sum = lease.range_checksum({.offset = 0, .bytes = 30'000});
  REQUIRE(sum.ok());
  const std::string received =
      testing::read_at(scattered.store.pool(), lease.extents(), {.offset = 0, .bytes = 30'000});
  CHECK(*sum != checksum(bytes_of(received), 0));
}

TEST_CASE("ranges out of bounds have no sum") {
  ScatteredStore scattered;
  const Lease lease = scattered.put(random_text(100, 3), {100});
  CHECK(lease.range_checksum({.offset = 0, .bytes = 0}).code() == Code::kInvalid);
  CHECK(lease.range_checksum({.offset = 0, .bytes = 101}).code() == Code::kInvalid);
  CHECK(lease.range_checksum({.offset = 100, .bytes = 1}).code() == Code::kInvalid);
  CHECK(lease.range_checksum({.offset = 1, .bytes = UINT64_MAX}).code() == Code::kInvalid);
}

}  // namespace
}  // namespace infinistore
