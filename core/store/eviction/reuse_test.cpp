#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "core/store/eviction/reuse_model.h"
#include "core/store/store_testing.h"

namespace infinistore {
namespace {

using testing::options_with;
using testing::pool_of;
using testing::still_clock;

StoreOptions reuse_with_shards(std::uint32_t shard_count) {
  StoreOptions options = options_with("reuse");
  options.shard_count = shard_count;
  return options;
}

void put_page(Store& store, const std::string& key, std::uint32_t depth = 0) {
  auto made = store.reserve(
      {.key = key, .value_bytes = kPageBytesMin, .depth = depth, .claims_whole = true});
  REQUIRE(made.ok());
  CHECK(std::move(*made).seal_whole(0) == Code::kOk);
}

std::vector<std::string> chain_of(const std::string& name, std::size_t blocks) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < blocks; ++i) keys.push_back(name + "." + std::to_string(i));
  return keys;
}

void put_chain(Store& store, const std::vector<std::string>& keys) {
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!store.exists(0, keys[i])) put_page(store, keys[i], static_cast<std::uint32_t>(i));
  }
}

TEST_CASE("an age is in the class that begins at or before it") {
  for (std::uint64_t age = 0; age < 5000; ++age) {
    const std::size_t at = ReuseModel::age_class(age);
    REQUIRE(ReuseModel::age_of(at) <= age);
    REQUIRE(age < ReuseModel::age_of(at + 1));
  }
  CHECK(ReuseModel::age_class(UINT64_MAX / 2) == ReuseModel::kAges - 1);
}

TEST_CASE("keeping what returns at some age is worth more before that age than after") {
  ReuseModel model;
  for (std::uint64_t now = 0; now < 200'000; ++now) {  // each key once more, 3,000 uses later
    model.used(now * 0x9E3779B97F4A7C15ULL, Kind::kNew, now);
    if (now >= 3000) model.used((now - 3000) * 0x9E3779B97F4A7C15ULL, Kind::kReturning, now);
  }
  CHECK(model.worth(Kind::kNew, 2500) > model.worth(Kind::kNew, 0));
  CHECK(model.worth(Kind::kNew, 2500) > model.worth(Kind::kNew, 6000));
  CHECK(model.worth(Kind::kNew, 2500) > model.worth(Kind::kReturning, 2500));
}

TEST_CASE("what returns is kept before a stream of what does not") {
  Store store(pool_of(64 * kPageBytesMin), reuse_with_shards(4), still_clock());
  const auto often = chain_of("often", 16);
  std::uint64_t hits = 0;
  std::uint64_t lookups = 0;
  for (int round = 0; round < 400; ++round) {
    for (const auto& key : often) {
      const bool is_there = store.find(0, key).has_value();
      if (round >= 200) {
        ++lookups;
        hits += is_there ? 1 : 0;
      }
      if (!is_there) put_page(store, key);
    }
    for (int i = 0; i < 128; ++i) {  // twice the pool: LRU would hit nothing
      put_page(store, "once." + std::to_string(round) + "." + std::to_string(i));
    }
  }
  CHECK(hits * 10 > lookups * 9);
  CHECK(store.check_integrity() == "");
}

TEST_CASE("a chain leaves from its end, over all shards") {
  Store store(pool_of(256 * kPageBytesMin), reuse_with_shards(32), still_clock());
  for (int i = 0; i < 3; ++i) put_chain(store, chain_of("chain" + std::to_string(i), 64));
  REQUIRE(store.evict(96 * kPageBytesMin) > 0);
  for (int i = 0; i < 3; ++i) {
    bool is_cut = false;
    for (const auto& key : chain_of("chain" + std::to_string(i), 64)) {
      const bool is_there = store.exists(0, key);
      CHECK_FALSE((is_there && is_cut));
      is_cut |= !is_there;
    }
  }
}

TEST_CASE("what was just written can be read while older entries are there") {
  Store store(pool_of(1024 * kPageBytesMin), reuse_with_shards(32), still_clock());
  for (int i = 0; i < 8000; ++i) put_page(store, "k" + std::to_string(i));
  for (int i = 8000; i < 9000; ++i) {
    put_page(store, "k" + std::to_string(i));
    for (int back = 0; back < 32; ++back) CHECK(store.exists(0, "k" + std::to_string(i - back)));
  }
}

}  // namespace
}  // namespace infinistore
