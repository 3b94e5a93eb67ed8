// Store::match_prefix().
#include <doctest/doctest.h>

#include "core/store/store_testing.h"

namespace infinistore {
namespace {

using testing::for_each_policy;
using testing::options_with;
using testing::pool_of;
using testing::put;
using testing::still_clock;

using Keys = std::vector<std::string_view>;

struct Fixture {
  explicit Fixture(std::string_view policy)
      : store(pool_of(1 << 20), options_with(policy), still_clock()) {}
  ~Fixture() {
    CHECK(store.counters().pins == 0);
    CHECK(store.check_integrity() == "");
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  void put_all(const Keys& keys) {
    for (const auto key : keys) REQUIRE(put(store, 0, key, "v") == Code::kOk);
  }
  std::size_t match(const Keys& keys, std::size_t group = 1) {
    return store.match_prefix(0, keys, group, nullptr);
  }
  Store store;
};

TEST_CASE("a match counts from the first key to the first that is missing") {
  for_each_policy([](auto policy) {
    Fixture f(policy);
    f.put_all({"a", "b", "d"});
    CHECK(f.match({}) == 0);
    CHECK(f.match({"a"}) == 1);
    CHECK(f.match({"a", "b", "c", "d"}) == 2);
    CHECK(f.match({"c", "a", "b"}) == 0);
    CHECK(f.match({"a", "b", "d"}) == 3);
    CHECK(f.match({"a", "a"}) == 2);
  });
}

TEST_CASE("a block counts only if all of its keys are there") {
  for_each_policy([](auto policy) {
    Fixture f(policy);
    f.put_all({"a0", "a1", "b0", "b1", "c0"});
    CHECK(f.match({"a0", "a1", "b0", "b1", "c0", "c1"}, 2) == 2);
    CHECK(f.match({"a0", "a1", "b0"}, 2) == 1);
    CHECK(f.match({"a0", "a1", "b0", "b1", "c0", "c1"}, 3) == 1);
    CHECK(f.match({"a0"}, 2) == 0);
    CHECK(f.match({"a0"}, 0) == 0);
  });
}

TEST_CASE("what is being written does not match") {
  Fixture f("lru");
  f.put_all({"a"});
  auto reservation = f.store.reserve({.key = "b", .value_bytes = 1});
  CHECK(f.match({"a", "b"}) == 1);
}

TEST_CASE("the keys of whole blocks are leased, in order, and no others") {
  for_each_policy([](auto policy) {
    Fixture f(policy);
    f.put_all({"a0", "a1", "b0", "b1", "c0"});
    std::vector<Lease> leases;
    const Keys keys = {"a0", "a1", "b0", "b1", "c0", "c1"};
    CHECK(f.store.match_prefix(0, keys, 2, &leases) == 2);
    REQUIRE(leases.size() == 4);
    for (std::size_t i = 0; i < 4; ++i) CHECK(leases[i].key() == keys[i]);
    CHECK(f.store.counters().pins == 4);
    f.store.evict(UINT64_MAX);
    CHECK(f.match(keys, 2) == 2);
    CHECK_FALSE(f.store.exists(0, "c0"));
  });
}

TEST_CASE("a match asks for all of its keys; those of the blocks that it found are hits") {
  Fixture f("lru");
  f.put_all({"a", "b"});
  f.match({"a", "b", "c"});
  f.match({"c", "a"});
  CHECK(f.store.counters().hits == 2);
  CHECK(f.store.counters().misses == 3);
}

TEST_CASE("a prefix outlives what follows it") {
  StoreOptions options = options_with("lru");
  options.shard_count = 1;
  Store store(pool_of(4 * 4096), options, still_clock());
  const Keys keys = {"root", "middle", "leaf"};
  for (const auto key : keys) REQUIRE(put(store, 0, key, "v") == Code::kOk);
  CHECK(store.match_prefix(0, keys, 1, nullptr) == 3);
  store.evict(1);
  CHECK_FALSE(store.exists(0, "leaf"));
  store.evict(1);
  CHECK(store.exists(0, "root"));
}

}  // namespace
}  // namespace infinistore
