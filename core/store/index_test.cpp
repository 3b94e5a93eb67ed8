#include "core/store/index.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <unordered_map>

namespace infinistore {
namespace {

KeyRef ref_of(std::string_view key, NamespaceId space = 1) {
  return {.space = space, .key = key, .hash = hash_in(space, key, 0)};
}

TEST_CASE("an entry is found by its namespace and key, and by nothing else") {
  Index index;
  CHECK(index.find(ref_of("a")) == nullptr);
  const EntryPtr entry = make_entry(ref_of("a"));
  index.insert(*entry);
  CHECK(index.find(ref_of("a")) == entry.get());
  CHECK(index.find(ref_of("b")) == nullptr);
  CHECK(index.find(ref_of("a", 2)) == nullptr);
  index.erase(*entry);
  CHECK(index.find(ref_of("a")) == nullptr);
  CHECK(index.size() == 0);
}

TEST_CASE("keys of one hash are told apart by their bytes") {
  Index index;
  std::vector<EntryPtr> entries;
  for (int i = 0; i < 300; ++i) {  // more than an overflow count can hold
    entries.push_back(make_entry({.space = 1, .key = "k" + std::to_string(i), .hash = 99}));
    index.insert(*entries.back());
  }
  for (int i = 0; i < 300; ++i) {
    const std::string key = "k" + std::to_string(i);
    CHECK(index.find({.space = 1, .key = key, .hash = 99}) ==
          entries[static_cast<std::size_t>(i)].get());
  }
  CHECK(index.find({.space = 1, .key = "none", .hash = 99}) == nullptr);
  for (const auto& entry : entries) index.erase(*entry);
  CHECK(index.size() == 0);
  CHECK(index.find({.space = 1, .key = "k1", .hash = 99}) == nullptr);
}

TEST_CASE("equal keys may stand in an index more than once") {
  Index index;
  const EntryPtr first = make_entry(ref_of("a"));
  const EntryPtr second = make_entry(ref_of("a"));
  index.insert(*first);
  index.insert(*second);
  index.erase(*first);
  CHECK(index.find(ref_of("a")) == second.get());
  index.erase(*second);
  CHECK(index.find(ref_of("a")) == nullptr);
}

TEST_CASE("an index agrees with a map through random inserts and erases") {
  Index index;
  std::unordered_map<std::string, EntryPtr> model;
  std::mt19937 random(5);  // NOLINT: a fixed seed is the point
  for (int step = 0; step < 40'000; ++step) {
    const std::string key = "key" + std::to_string(random() % 5'000);
    const auto at = model.find(key);
    REQUIRE(index.find(ref_of(key)) == (at == model.end() ? nullptr : at->second.get()));
    if (at == model.end()) {
      auto entry = make_entry(ref_of(key));
      index.insert(*entry);
      model.emplace(key, std::move(entry));
    } else {
      index.erase(*at->second);
      model.erase(at);
    }
    REQUIRE(index.size() == model.size());
  }
  std::size_t count = 0;
  index.for_each([&](const Entry& entry) {
    ++count;
    CHECK(model.contains(std::string(entry.key())));
  });
  CHECK(count == model.size());
}

TEST_CASE("an index costs at most 21 bytes a key") {
  Index index;
  std::vector<EntryPtr> entries;
  double worst = 0;
  for (int i = 0; i < 100'000; ++i) {
    entries.push_back(make_entry(ref_of(std::to_string(i))));
    index.insert(*entries.back());
    if (i > 1'000) {
      worst =
          std::max(worst, static_cast<double>(index.bytes()) / static_cast<double>(index.size()));
    }
  }
  CHECK(worst < 21.4);
}

}  // namespace
}  // namespace infinistore
