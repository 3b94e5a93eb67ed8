// Room in a pool that is not populated yet.
#include <doctest/doctest.h>

#include <string>
#include <thread>

#include "core/store/store_testing.h"

namespace infinistore {
namespace {

using testing::options_with;
using testing::put;
using testing::still_clock;

TEST_CASE("a store evicts only once its pool is populated to the end") {
  auto pool = Pool::create({.bytes = 6 << 20});
  REQUIRE(pool.ok());
  Store store(std::move(*pool), options_with("lru"), still_clock());
  const std::string value(1 << 20, 'v');
  for (int i = 0; i < 6; ++i) CHECK(put(store, 0, std::to_string(i), value) == Code::kOk);
  CHECK(store.counters().evictions == 0);
  CHECK(store.counters().populated_bytes == 6 << 20);
  CHECK(put(store, 0, "one more", value) == Code::kOk);
  CHECK(store.counters().evictions == 1);
  CHECK(store.check_integrity() == "");
}

TEST_CASE("a put while another thread populates the last of the pool waits for it") {
  const std::string value(1 << 20, 'v');
  int met = 0;
  for (int i = 0; i < 100 && met < 5; ++i) {
    auto pool = Pool::create({.bytes = 24 << 20, .huge_pages = HugePages::kOff});
    REQUIRE(pool.ok());
    Store store(std::move(*pool), options_with("lru"), still_clock());
    std::thread background([&] { store.pool().populate_some(32 << 20); });
    while (store.pool().has_unbegun()) std::this_thread::yield();
    if (!store.pool().is_populated()) ++met;
    CHECK(put(store, 0, "first", value) == Code::kOk);
    background.join();
    CHECK(store.check_integrity() == "");
  }
  CHECK(met > 0);
}

}  // namespace
}  // namespace infinistore
