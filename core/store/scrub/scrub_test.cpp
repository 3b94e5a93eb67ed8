#include "core/store/scrub/scrub.h"

#include <doctest/doctest.h>

#include "core/store/store_testing.h"

namespace infinistore {
namespace {

using testing::put;

struct Fixture {
  explicit Fixture(std::uint64_t pool_bytes = 4u << 20)
      : store(testing::pool_of(pool_bytes), testing::options_with("lru"), testing::still_clock()) {}

  void damage(std::string_view key, std::uint64_t at) {
    const auto lease = store.find_quietly(0, key);
    REQUIRE(lease);
    auto byte = testing::read_at(store.pool(), lease->extents(), {.offset = at, .bytes = 1});
    byte[0] = static_cast<char>(byte[0] ^ 1);
    testing::write_at(store.pool(), lease->extents(), at, bytes_of(byte));
  }
  Scrub::Found all(std::uint64_t step = 1 << 20) {
    Scrub scrub(store);
    while (scrub.step(step)) {
    }
    return scrub.found();
  }
  // In the middle of the only value.
  static void begin(Scrub& scrub) {
    while (scrub.held_bytes() == 0) REQUIRE(scrub.step(4096));
  }

  Store store;
};

std::string name(int i) { return "key" + std::to_string(i); }

}  // namespace

TEST_CASE("a scrub sees every value once, and finds nothing in an empty or healthy store") {
  Fixture f;
  CHECK(f.all().values == 0);
  for (int i = 0; i < 300; ++i)
    REQUIRE(put(f.store, 0, name(i), std::string(100, 'x')) == Code::kOk);
  for (const std::uint64_t step : {1, 100, 5'000, 1 << 20}) {
    CAPTURE(step);
    const auto found = f.all(step);
    CHECK(found.values == 300);
    CHECK(found.bytes == 300 * 100);
    CHECK(found.corrupt == 0);
    CHECK(found.damaged.empty());
  }
  CHECK(f.store.counters().hits == 0);
  CHECK(f.store.counters().pins == 0);
  CHECK(f.store.check_integrity() == "");
}

TEST_CASE("a flipped byte anywhere in a value is found, and only that value is dropped") {
  for (const std::uint64_t at : {0, 1, 4'095, 4'096, 9'990, 9'999}) {
    for (const std::uint64_t step : {1'000, 1 << 20}) {
      CAPTURE(at);
      CAPTURE(step);
      Fixture f;
      const auto space = f.store.intern("of a tenant").value();
      for (int i = 0; i < 50; ++i) put(f.store, 0, name(i), std::string(10'000, 'x'));
      put(f.store, space, "other", std::string(10'000, 'y'));
      f.damage(name(7), at);
      const auto found = f.all(step);
      CHECK(found.values == 51);
      CHECK(found.corrupt == 1);
      REQUIRE(found.damaged.size() == 1);
      CHECK(found.damaged[0].key == name(7));
      CHECK(found.damaged[0].space.empty());
      CHECK_FALSE(f.store.exists(0, name(7)));
      CHECK(f.store.counters().keys == 50);
      CHECK(f.store.counters().corrupt == 1);
      CHECK(f.all().corrupt == 0);
      CHECK(f.store.check_integrity() == "");
    }
  }
}

TEST_CASE("a value that was filled in ranges is compared range by range, of any lengths") {
  for (const std::uint64_t at : {0, 6, 7, 1'000, 2'999}) {
    CAPTURE(at);
    Fixture f;
    auto reservation = f.store.reserve({.key = "k", .value_bytes = 3'000});
    REQUIRE(reservation);
    testing::fill(f.store, *reservation, 7, std::string(2'000, 'b'));
    testing::fill(f.store, *reservation, 2'007, std::string(993, 'c'));
    testing::fill(f.store, *reservation, 0, std::string(7, 'a'));
    REQUIRE(std::move(*reservation).seal() == Code::kOk);
    CHECK(f.all(13).corrupt == 0);
    CHECK(f.all().values == 1);
    f.damage("k", at);
    CHECK(f.all(13).corrupt == 1);
  }
}

TEST_CASE("more damaged values than are named are dropped and counted all the same") {
  Fixture f(16u << 20);
  constexpr int kCount = Scrub::kDamagedMax + 20;
  for (int i = 0; i < kCount; ++i) {
    REQUIRE(put(f.store, 0, name(i), "some value") == Code::kOk);
    f.damage(name(i), 3);
  }
  const auto found = f.all();
  CHECK(found.corrupt == kCount);
  CHECK(found.damaged.size() == Scrub::kDamagedMax);
  CHECK(f.store.counters().keys == 0);
}

TEST_CASE("what is erased, replaced or purged under a scrub is let go at its next step") {
  for (const std::string_view how : {"erased", "replaced", "purged"}) {
    CAPTURE(how);
    Fixture f;
    put(f.store, 0, "k", std::string(100'000, 'x'));
    f.damage("k", 99'999);
    Scrub scrub(f.store);
    Fixture::begin(scrub);
    scrub.step(10'000);
    if (how == "erased") CHECK(f.store.erase(0, "k"));
    if (how == "purged") CHECK(f.store.purge(0) == 1);
    if (how == "replaced") CHECK(put(f.store, 0, "k", "new", OnExists::kReplace) == Code::kOk);
    CHECK(f.store.check_integrity() == "");
    CHECK(f.store.counters().sealed_bytes >= 100'000);  // still under the scrub's eyes
    while (scrub.step(10'000)) {
    }
    CHECK(scrub.found().corrupt == 0);  // nobody could have read it any more
    CHECK(f.store.exists(0, "k") == (how == "replaced"));
    CHECK(f.store.counters().sealed_bytes <= 4096);
    CHECK(f.store.check_integrity() == "");
  }
}

TEST_CASE("a pinned value is scrubbed too, and one that is damaged leaves its reader the bytes") {
  Fixture f;
  put(f.store, 0, "k", std::string(10'000, 'x'));
  f.damage("k", 5'000);
  {
    const auto lease = f.store.find(0, "k");
    REQUIRE(lease);
    CHECK(f.all().corrupt == 1);
    CHECK_FALSE(f.store.exists(0, "k"));
    CHECK(lease->extents().front().bytes > 0);
    CHECK(f.store.counters().sealed_bytes > 0);
    CHECK(f.store.check_integrity() == "");
  }
  CHECK(f.store.counters().sealed_bytes == 0);
}

TEST_CASE("a scrub is no use of what it sees: the order of eviction stays") {
  testing::for_each_policy([](auto policy) {
    CAPTURE(policy);
    Store store(testing::pool_of(1u << 20), testing::options_with(policy), testing::still_clock());
    Store other(testing::pool_of(1u << 20), testing::options_with(policy), testing::still_clock());
    for (auto* each : {&store, &other}) {
      for (int i = 0; i < 100; ++i) put(*each, 0, name(i), std::string(4096, 'x'));
      for (int i = 0; i < 100; i += 3) each->find(0, name(i));
    }
    Scrub scrub(store);
    while (scrub.step(5'000)) {
    }
    CHECK(scrub.found().values == 100);
    for (int round = 0; round < 10; ++round) {
      CHECK(store.evict(10 * 4096) == other.evict(10 * 4096));
      for (int i = 0; i < 100; ++i) CHECK(store.exists(0, name(i)) == other.exists(0, name(i)));
    }
  });
}

TEST_CASE("what is evicted under a scrub frees its bytes a step later, and is not counted before") {
  Fixture f;
  put(f.store, 0, "k", std::string(100'000, 'x'));
  Scrub scrub(f.store);
  Fixture::begin(scrub);
  const auto before = f.store.counters().free_bytes;
  CHECK(f.store.evict(4096) == 0);
  CHECK(f.store.counters().free_bytes == before);
  CHECK(f.store.counters().evictions == 1);
  CHECK_FALSE(f.store.exists(0, "k"));
  CHECK(f.store.check_integrity() == "");
  scrub.step(1);
  CHECK(f.store.counters().free_bytes == f.store.counters().capacity_bytes);
  CHECK(f.store.check_integrity() == "");
}

TEST_CASE("a scrub that is given up in the middle of a value holds nothing") {
  Fixture f;
  put(f.store, 0, "k", std::string(100'000, 'x'));
  {
    Scrub scrub(f.store);
    Fixture::begin(scrub);
    CHECK(f.store.erase(0, "k"));
    CHECK(f.store.counters().sealed_bytes > 0);
  }
  CHECK(f.store.counters().sealed_bytes == 0);
  CHECK(f.store.check_integrity() == "");
}

TEST_CASE("values that come meanwhile do not end a scrub, and none that was there is passed over") {
  Fixture f(16u << 20);
  for (int i = 0; i < 500; ++i) put(f.store, 0, name(i), "some value");
  for (int i = 0; i < 500; i += 50) f.damage(name(i), 2);
  Scrub scrub(f.store);
  for (int i = 500; scrub.step(4096); ++i) {
    if (i < 3'000) put(f.store, 0, name(i), "some value");  // the tables grow under it
  }
  CHECK(scrub.found().corrupt == 10);
  CHECK(scrub.found().values >= 500);
  CHECK(scrub.found().values <= 3'000);
}

TEST_CASE("many scrubs at once hold one value, and more than can be counted pass it over") {
  Fixture f;
  put(f.store, 0, "k", std::string(100'000, 'x'));
  std::vector<Lease> held;
  for (int i = 0; i < 127; ++i) {
    auto lease = f.store.find_quietly(0, "k");
    REQUIRE(lease);
    held.push_back(std::move(*lease));
  }
  CHECK_FALSE(f.store.find_quietly(0, "k"));
  CHECK(f.all().values == 0);
  CHECK(f.store.erase(0, "k"));
  held.pop_back();
  CHECK(f.store.counters().sealed_bytes > 0);
  held.clear();
  CHECK(f.store.counters().sealed_bytes == 0);
}

}  // namespace infinistore
