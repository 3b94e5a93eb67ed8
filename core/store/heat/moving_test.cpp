#include "core/store/heat/moving.h"

#include <doctest/doctest.h>

#include <string>

#include "core/store/store_testing.h"

namespace infinistore {
namespace {

using testing::put;

struct Fixture {
  std::uint64_t begin(std::vector<std::string_view> keys) { return moving.begin("", keys); }
  Reservation reserve_copy(std::string_view key) {
    auto made = store.reserve({.key = key, .value_bytes = 3, .on_exists = OnExists::kCopy});
    REQUIRE(made);
    REQUIRE(made->claim({.offset = 0, .bytes = 3}) == Code::kOk);
    made->filled({.offset = 0, .bytes = 3}, 0);
    return std::move(made).value();
  }

  ManualClock clock;
  Store store{testing::pool_of(std::uint64_t{1} << 20), testing::options_with("lru"), clock};
  Moving moving{store};
};

}  // namespace

TEST_CASE("a move tells which keys kept their value, and lets their bytes go") {
  Fixture f;
  for (const auto* key : {"kept", "erased", "replaced", "evicted and back"}) {
    put(f.store, 0, key, "old");
  }
  const auto id = f.begin({"kept", "erased", "replaced", "evicted and back", "never there"});
  f.store.erase(0, "erased");
  put(f.store, 0, "replaced", "new", OnExists::kReplace);
  f.store.erase(0, "evicted and back");
  put(f.store, 0, "evicted and back", "old");
  CHECK(f.moving.end(id) == std::vector<bool>{true, false, false, false, false});
  CHECK(f.moving.end(id).empty());
  CHECK(f.store.counters().keys == 3);
  CHECK(f.store.counters().sealed_bytes == 3 * kPageBytesMin);
  CHECK(f.store.check_integrity().empty());
}

TEST_CASE("more moves than there can be are refused and hold nothing") {
  Fixture f;
  put(f.store, 0, "k", "old");
  std::vector<std::uint64_t> ids;
  for (std::size_t i = 0; i < Moving::kMovesMax; ++i) ids.push_back(f.begin({"k"}));
  CHECK(f.begin({"k"}) == 0);
  for (const auto id : ids) CHECK(f.moving.end(id) == std::vector<bool>{true});
  CHECK(f.begin({"k"}) != 0);
}

TEST_CASE("a copy is not sealed once its key was erased or replaced since it began") {
  Fixture f;
  auto erased = f.reserve_copy("erased");
  CHECK_FALSE(f.store.erase(0, "erased"));  // it was not there, and shall not come
  auto replaced = f.reserve_copy("replaced");
  put(f.store, 0, "replaced", "new", OnExists::kReplace);
  f.store.erase(0, "replaced");
  auto other = f.reserve_copy("other");
  f.store.erase(0, "unlike other");
  CHECK(std::move(erased).seal() == Code::kAborted);
  CHECK(std::move(replaced).seal() == Code::kAborted);
  CHECK(std::move(other).seal() == Code::kOk);
  CHECK(f.store.counters().keys == 1);
  auto late = f.reserve_copy("erased");  // of what is read from now on
  CHECK(std::move(late).seal() == Code::kOk);
  CHECK(f.store.check_integrity().empty());
}

TEST_CASE("who writes on his own account is not kept from it by an erase") {
  Fixture f;
  auto made = f.store.reserve({.key = "k", .value_bytes = 3});
  REQUIRE(made);
  REQUIRE(made->claim({.offset = 0, .bytes = 3}) == Code::kOk);
  made->filled({.offset = 0, .bytes = 3}, 0);
  f.store.erase(0, "k");
  CHECK(std::move(*made).seal() == Code::kOk);
}

}  // namespace infinistore
