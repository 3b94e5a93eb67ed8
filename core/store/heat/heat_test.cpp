#include "core/store/heat/heat.h"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "core/store/store_testing.h"

namespace infinistore {
namespace {

using testing::put;

constexpr std::uint64_t kMiB = 1 << 20;

struct Fixture {
  void serve(std::string_view key, std::uint64_t bytes, NamespaceId space = 0) {
    const auto lease = store.find(space, key);
    REQUIRE(lease);
    heat.served(std::span(&*lease, 1), std::span(&bytes, 1), clock.now());
  }
  std::vector<std::string> names(std::size_t count_max = 100) const {
    std::vector<std::string> found;
    for (const auto& key : heat.hottest(count_max)) found.push_back(key.key);
    return found;
  }

  ManualClock clock;
  Store store{testing::pool_of(16 * kMiB), testing::options_with("lru"), clock};
  Heat heat{store, clock, 2 * kSecond};
};

std::string name(int i) { return "key" + std::to_string(i); }

std::map<std::string, int> walked(const Heat& heat, std::size_t count_max) {
  std::map<std::string, int> seen;
  std::uint64_t cursor = 0;
  do {
    const auto page = heat.list_keys(cursor, count_max);
    CHECK(page.keys.size() <= std::max<std::size_t>(count_max, 7));
    for (const auto& key : page.keys) ++seen[key.key];
    cursor = page.next;
  } while (cursor != 0);
  return seen;
}

}  // namespace

TEST_CASE("the hottest keys come first, with their namespace, size and rate") {
  Fixture f;
  const auto space = f.store.intern("tenant").value();
  put(f.store, 0, "cool", "some bytes");
  put(f.store, space, "hot", "others");
  put(f.store, 0, "never read", "bytes");
  CHECK(f.heat.hottest(10).empty());
  f.serve("cool", kMiB);
  f.serve("hot", 3 * kMiB, space);
  const auto hottest = f.heat.hottest(10);
  REQUIRE(hottest.size() == 2);
  CHECK(hottest[0].space == "tenant");
  CHECK(hottest[0].key == "hot");
  CHECK(hottest[0].value_bytes == 6);
  CHECK(hottest[0].bytes_per_s == doctest::Approx(3 * hottest[1].bytes_per_s));
  CHECK(f.heat.total_rate() == doctest::Approx(4 * hottest[1].bytes_per_s));
  CHECK(f.names(1) == std::vector<std::string>{"hot"});
  const double before = f.heat.total_rate();
  f.clock.advance(2 * kSecond);
  CHECK(f.heat.total_rate() == doctest::Approx(before / 2));
}

TEST_CASE("what is gone is not hot, and what comes back is") {
  Fixture f;
  put(f.store, 0, "a", "bytes");
  f.serve("a", kMiB);
  CHECK(f.store.erase(0, "a"));
  CHECK(f.names().empty());
  put(f.store, 0, "a", "bytes");
  CHECK(f.names() == std::vector<std::string>{"a"});
}

TEST_CASE("a key that was ever put with replace is not offered, whoever put it first or later") {
  Fixture f;
  put(f.store, 0, "a", "bytes", OnExists::kReplace);
  put(f.store, 0, "b", "bytes");
  put(f.store, 0, "b", "other", OnExists::kReplace);
  put(f.store, 0, "c", "bytes");
  for (const auto* key : {"a", "b", "c"}) f.serve(key, kMiB);
  CHECK(f.names() == std::vector<std::string>{"c"});
  CHECK(put(f.store, 0, "b", "other") == Code::kExists);
  CHECK(f.names() == std::vector<std::string>{"c"});
  CHECK(walked(f.heat, 10).size() == 3);  // but they move with the rest
}

TEST_CASE("reads of few bytes are sampled, and add up to what was read") {
  Fixture f;
  for (const std::uint64_t bytes : {100, 4'096, 60'000}) {
    CAPTURE(bytes);
    put(f.store, 0, name(static_cast<int>(bytes)), "some bytes");
    double told = 0;
    const double before = f.heat.total_rate();
    const auto reads = 400 * std::uint64_t{65'536} / bytes;
    for (std::uint64_t i = 0; i < reads; ++i) {
      f.clock.advance(1);
      f.serve(name(static_cast<int>(bytes)), bytes);
    }
    told = f.heat.total_rate() - before;
    // One byte served now is a rate of ln 2 / 2 s.  400 samples: 5 % is their deviation.
    const double truth = static_cast<double>(reads * bytes) * 0.34657;
    CHECK(told == doctest::Approx(truth).epsilon(0.2));
  }
}

TEST_CASE("a walk sees every key once, in pages of any size, with its heat") {
  Fixture f;
  CHECK(walked(f.heat, 10).empty());
  const auto space = f.store.intern("tenant").value();
  for (int i = 0; i < 700; ++i) put(f.store, i % 2 == 0 ? 0 : space, name(i), "bytes");
  f.serve(name(4), kMiB);
  for (const std::size_t count_max : {0, 1, 7, 100, 10'000}) {
    CAPTURE(count_max);
    const auto seen = walked(f.heat, count_max);
    CHECK(seen.size() == 700);
    for (const auto& [key, times] : seen) CHECK(times == 1);
  }
  const auto page = f.heat.list_keys(0, 10'000);
  CHECK(page.next == 0);
  for (const auto& key : page.keys) {
    CHECK((key.bytes_per_s > 0) == (key.key == name(4)));
    CHECK(key.value_bytes == 5);
    CHECK(key.space == (std::stoi(key.key.substr(3)) % 2 == 0 ? "" : "tenant"));
  }
}

TEST_CASE("a walk passes over no key that stays, whatever comes and goes meanwhile") {
  Fixture f;
  for (int i = 0; i < 1'000; ++i) put(f.store, 0, name(i), "bytes");
  std::set<std::string> seen;
  std::uint64_t cursor = 0;
  int step = 0;
  do {
    const auto page = f.heat.list_keys(cursor, 20);
    for (const auto& key : page.keys) seen.insert(key.key);
    cursor = page.next;
    for (int i = 0; i < 15 && step < 150; ++i) {  // the tables grow under it
      put(f.store, 0, name(1'000 + step * 15 + i), "bytes");
    }
    f.store.erase(0, name(2 * step + 1));
    ++step;
  } while (cursor != 0);
  for (int i = 0; i < 1'000; i += 2) CHECK(seen.contains(name(i)));
}

TEST_CASE("a cursor of nobody's walk gives some page, and ends") {
  Fixture f;
  for (int i = 0; i < 100; ++i) put(f.store, 0, name(i), "bytes");
  for (const std::uint64_t cursor : {~std::uint64_t{0}, std::uint64_t{3} << 50 | 0xFFFFFF,
                                     std::uint64_t{15} << 56 | 12'345, std::uint64_t{77}}) {
    auto page = f.heat.list_keys(cursor, 1'000);
    for (int pages = 0; page.next != 0; ++pages) {
      REQUIRE(pages < 100);
      page = f.heat.list_keys(page.next, 1'000);
    }
  }
}

}  // namespace infinistore
