#include "core/store/hash_table/hash_table.h"

#include <doctest/doctest.h>

#include <map>
#include <random>

namespace infinistore {
namespace {

struct Element {
  std::uint64_t hash = 0;
  std::uint32_t next = 0;
};
using Table = HashTable<Element>;

TEST_CASE("elements of one bucket are found each by its hash, whichever of them goes") {
  for (std::uint32_t leaving = 0; leaving < 3; ++leaving) {
    CAPTURE(leaving);
    std::vector<Element> elements(3);
    Table table(4);
    for (std::uint32_t i = 0; i < 3; ++i) {
      elements[i].hash = 1 + 4 * i;
      table.link(elements, i);
    }
    CHECK(table.first(1) == 2);  // the last that came
    table.unlink(elements, leaving);
    for (std::uint32_t i = 0; i < 3; ++i) {
      CHECK(table.find(elements, elements[i].hash) == (i == leaving ? Table::kNone : i));
    }
  }
}

TEST_CASE("an empty bucket has no first, and a cleared table nothing") {
  std::vector<Element> elements(1);
  Table table(3);
  elements[0].hash = 7;
  table.link(elements, 0);
  table.expect(7);
  CHECK(table.first(3) == 0);  // of four buckets
  CHECK(table.first(2) == Table::kNone);
  CHECK(table.find(elements, 3) == Table::kNone);
  table.clear();
  CHECK(table.first(7) == Table::kNone);
}

TEST_CASE("a table agrees with a map while elements come, go and take other hashes") {
  constexpr std::uint32_t kElements = 200;
  std::mt19937_64 random(1);  // NOLINT: a fixed seed makes runs alike
  std::vector<Element> elements(kElements);
  std::map<std::uint64_t, std::uint32_t> there;
  Table table(64);
  for (int step = 0; step < 20'000; ++step) {
    const auto index = static_cast<std::uint32_t>(random() % kElements);
    const auto held = there.find(elements[index].hash);
    if (held != there.end() && held->second == index) {
      table.unlink(elements, index);
      there.erase(held);
      continue;
    }
    const std::uint64_t hash = random() % 500;
    if (!there.emplace(hash, index).second) continue;
    elements[index].hash = hash;
    table.link(elements, index);
  }
  for (std::uint64_t hash = 0; hash < 500; ++hash) {
    const auto held = there.find(hash);
    CHECK(table.find(elements, hash) == (held == there.end() ? Table::kNone : held->second));
  }
}

}  // namespace
}  // namespace infinistore
