#include "core/store/store.h"

#include <doctest/doctest.h>

#include <array>

#include "core/base/limits.h"
#include "core/store/store_testing.h"

namespace infinistore {
namespace {

using testing::fill;
using testing::for_each_policy;
using testing::get;
using testing::options_with;
using testing::pool_of;
using testing::put;
using testing::still_clock;
using testing::text_of;

constexpr std::uint64_t kPage = kPageBytesMin;

// A store of so many pages, checked whenever it dies.
struct Fixture {
  explicit Fixture(std::string_view policy, std::uint64_t pages = 8)
      : store(pool_of(pages * kPage), options_with(policy), still_clock()) {}
  ~Fixture() { CHECK(store.check_integrity() == ""); }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  Result<Reservation> reserve(std::string_view key, std::uint64_t bytes) {
    return store.reserve({.key = key, .value_bytes = bytes});
  }
  Store store;
};

// A value of whole pages that says whose it is.
std::string page_of(char c, std::size_t pages = 1) { return std::string(pages * kPage, c); }

TEST_CASE("what is put is found, byte for byte") {
  for_each_policy([](auto policy) {
    Fixture f(policy);
    const std::string value = "a value of odd length";
    CHECK(put(f.store, 0, "key", value) == Code::kOk);
    CHECK(get(f.store, 0, "key") == value);
    CHECK(f.store.exists(0, "key"));
    CHECK_FALSE(get(f.store, 0, "other"));
    CHECK_FALSE(f.store.exists(0, "other"));
    const StoreCounters counters = f.store.counters();
    CHECK(counters.keys == 1);
    CHECK(counters.hits == 1);
    CHECK(counters.misses == 1);
    CHECK(counters.sealed_bytes == kPage);
    CHECK(counters.free_bytes == 7 * kPage);
  });
}

TEST_CASE("to expect keys changes nothing, however many, there or not") {
  for_each_policy([](auto policy) {
    Fixture f(policy, 64);
    f.store.expect(0, {}, Expect::kFind);
    std::vector<std::string> names;
    for (int i = 0; i < 600; ++i) names.push_back("key" + std::to_string(i % 500));
    const std::vector<std::string_view> keys(names.begin(), names.end());
    for (std::size_t i = 0; i < 40; ++i)
      REQUIRE(put(f.store, 0, keys[i * 7], "value") == Code::kOk);
    const auto lease = f.store.find(0, keys[7]);
    const StoreCounters before = f.store.counters();
    for (const auto what : {Expect::kReserve, Expect::kExists, Expect::kFind}) {
      std::size_t there = 0;
      std::size_t next = 0;
      f.store.for_each_expected(0, keys, what, [&](std::size_t i) {
        CHECK(i == next++);
        there += f.store.exists(0, keys[i]) ? 1 : 0;
      });
      CHECK(next == keys.size());
      CHECK(there == 40 + 15);  // 15 of the first hundred, which come twice
    }
    const StoreCounters after = f.store.counters();
    CHECK(after.hits == before.hits);
    CHECK(after.misses == before.misses);
    CHECK(after.pins == 1);
    CHECK(f.store.check_integrity() == "");
  });
}

TEST_CASE("keys are any bytes, up to 255 of them") {
  Fixture f("lru");
  const std::string zeros("\0a\0", 3);
  CHECK(put(f.store, 0, zeros, "zeros") == Code::kOk);
  CHECK(put(f.store, 0, std::string(255, '\xFF'), "long") == Code::kOk);
  CHECK(get(f.store, 0, zeros) == "zeros");
  CHECK_FALSE(get(f.store, 0, std::string("\0a", 2)));
  CHECK(get(f.store, 0, std::string(255, '\xFF')) == "long");
  CHECK(f.reserve("", 1).code() == Code::kInvalid);
  CHECK(f.reserve(std::string(256, 'k'), 1).code() == Code::kInvalid);
  CHECK(f.reserve("k", 0).code() == Code::kInvalid);
  const std::string parent(256, 'p');
  CHECK(f.store.reserve({.key = "k", .value_bytes = 1, .parent = parent}).code() == Code::kInvalid);
}

TEST_CASE("a value is invisible until it is sealed") {
  for_each_policy([](auto policy) {
    Fixture f(policy);
    auto reservation = f.reserve("key", 10);
    REQUIRE(reservation.ok());
    CHECK(fill(f.store, *reservation, 0, "01234") == Code::kOk);
    CHECK_FALSE(reservation->is_complete());
    CHECK_FALSE(f.store.exists(0, "key"));
    CHECK(f.store.is_written(0, "key"));
    CHECK(fill(f.store, *reservation, 5, "56789") == Code::kOk);
    CHECK(reservation->is_complete());
    CHECK_FALSE(f.store.find(0, "key"));
    CHECK(std::move(*reservation).seal() == Code::kOk);
    CHECK_FALSE(f.store.is_written(0, "key"));
    CHECK(get(f.store, 0, "key") == "0123456789");
  });
}

TEST_CASE("a reservation dropped unsealed is as if it never was") {
  for_each_policy([](auto policy) {
    Fixture f(policy);
    {
      auto reservation = f.reserve("key", 3 * kPage);
      REQUIRE(reservation.ok());
      CHECK(f.store.counters().reserved_bytes == 3 * kPage);
      CHECK(fill(f.store, *reservation, 0, "begun") == Code::kOk);
    }
    const StoreCounters counters = f.store.counters();
    CHECK(counters.reserved_bytes == 0);
    CHECK(counters.free_bytes == 8 * kPage);
    CHECK(counters.aborted == 1);
    CHECK_FALSE(f.store.is_written(0, "key"));
    CHECK(put(f.store, 0, "key", "again") == Code::kOk);
  });
}

TEST_CASE("an existing key is kept, and another size is refused") {
  for_each_policy([](auto policy) {
    Fixture f(policy);
    REQUIRE(put(f.store, 0, "key", "first") == Code::kOk);
    CHECK(put(f.store, 0, "key", "other") == Code::kExists);
    CHECK(put(f.store, 0, "key", "longer") == Code::kSizeMismatch);
    CHECK(get(f.store, 0, "key") == "first");
    CHECK(f.store.counters().exists == 1);
    CHECK(f.store.counters().refused == 1);
  });
}

TEST_CASE("of two writers of a key the first seal wins") {
  for_each_policy([](auto policy) {
    Fixture f(policy);
    auto first = f.reserve("key", 5);
    auto second = f.reserve("key", 5);
    auto longer = f.reserve("key", 7);
    REQUIRE((first.ok() && second.ok() && longer.ok()));
    CHECK(fill(f.store, *first, 0, "first") == Code::kOk);
    CHECK(fill(f.store, *second, 0, "other") == Code::kOk);
    CHECK(fill(f.store, *longer, 0, "another") == Code::kOk);
    CHECK(std::move(*second).seal() == Code::kOk);
    CHECK(f.store.is_written(0, "key"));
    CHECK(std::move(*first).seal() == Code::kExists);
    CHECK(std::move(*longer).seal() == Code::kSizeMismatch);
    CHECK_FALSE(f.store.is_written(0, "key"));
    CHECK(get(f.store, 0, "key") == "other");
    CHECK(f.store.counters().free_bytes == 7 * kPage);
  });
}

TEST_CASE("a replacement is swapped in at its seal, and readers of the old value keep it") {
  for_each_policy([](auto policy) {
    Fixture f(policy);
    REQUIRE(put(f.store, 0, "key", page_of('a', 2)) == Code::kOk);
    {
      const auto old = f.store.find(0, "key");
      auto reservation =
          f.store.reserve({.key = "key", .value_bytes = kPage, .on_exists = OnExists::kReplace});
      REQUIRE(reservation.ok());
      CHECK(fill(f.store, *reservation, 0, page_of('b')) == Code::kOk);
      CHECK(get(f.store, 0, "key") == page_of('a', 2));
      CHECK(std::move(*reservation).seal() == Code::kOk);
      CHECK(get(f.store, 0, "key") == page_of('b'));
      CHECK(text_of(f.store, *old) == page_of('a', 2));
      CHECK(f.store.counters().sealed_bytes == 3 * kPage);
      CHECK(f.store.check_integrity() == "");
    }
    CHECK(f.store.counters().sealed_bytes == kPage);
    CHECK(f.store.counters().keys == 1);
  });
}

TEST_CASE("replacing what nobody reads gives its bytes back at once") {
  Fixture f("lru");
  for (char c = 'a'; c < 'z'; ++c) {
    CHECK(put(f.store, 0, "key", page_of(c, 3), OnExists::kReplace) == Code::kOk);
  }
  CHECK(get(f.store, 0, "key") == page_of('y', 3));
  CHECK(f.store.counters().sealed_bytes == 3 * kPage);
  CHECK(f.store.counters().evictions == 0);
}

TEST_CASE("a full pool evicts what is sealed and unpinned") {
  for_each_policy([](auto policy) {
    Fixture f(policy, 4);
    for (int i = 0; i < 40; ++i) {
      CHECK(put(f.store, 0, "k" + std::to_string(i), page_of('x')) == Code::kOk);
    }
    CHECK(f.store.counters().keys == 4);
    CHECK(f.store.counters().evictions == 36);
    CHECK(f.store.counters().evicted_bytes == 36 * kPage);
  });
}

TEST_CASE("lru evicts what was used longest ago") {
  Store store(pool_of(3 * kPage), options_with("lru"), still_clock());
  for (const auto* key : {"a", "b", "c"}) REQUIRE(put(store, 0, key, page_of('x')) == Code::kOk);
  CHECK(get(store, 0, "a"));
  CHECK(put(store, 0, "b", page_of('x')) == Code::kExists);  // a use, too
  REQUIRE(put(store, 0, "d", page_of('x')) == Code::kOk);
  CHECK_FALSE(store.exists(0, "c"));
  REQUIRE(put(store, 0, "e", page_of('x')) == Code::kOk);
  CHECK_FALSE(store.exists(0, "a"));
  CHECK(store.exists(0, "b"));
}

TEST_CASE("lru's order is one over all shards") {
  StoreOptions options = options_with("lru");
  options.shard_count = 32;
  Store store(pool_of(64 * kPage), options, still_clock());
  for (int i = 0; i < 200; ++i) {
    REQUIRE(put(store, 0, "k" + std::to_string(i), page_of('x')) == Code::kOk);
  }
  for (int i = 0; i < 200; ++i) {
    CAPTURE(i);
    CHECK(store.exists(0, "k" + std::to_string(i)) == (i >= 200 - 64));
  }
  REQUIRE(store.evict(10 * kPage) == 10 * kPage);
  CHECK_FALSE(store.exists(0, "k145"));
  CHECK(store.exists(0, "k146"));
}

TEST_CASE("a large value evicts over all shards until it fits") {
  for_each_policy([](auto policy) {
    Fixture f(policy, 64);
    for (int i = 0; i < 64; ++i) {
      REQUIRE(put(f.store, 0, "k" + std::to_string(i), page_of('x')) == Code::kOk);
    }
    CHECK(put(f.store, 0, "large", page_of('L', 60)) == Code::kOk);
    CHECK(get(f.store, 0, "large") == page_of('L', 60));
    CHECK(f.store.counters().keys == 5);
  });
}

TEST_CASE("a lease keeps its bytes through erase, purge and pressure") {
  for_each_policy([](auto policy) {
    Fixture f(policy, 4);
    REQUIRE(put(f.store, 0, "erased", page_of('e')) == Code::kOk);
    REQUIRE(put(f.store, 0, "held", page_of('h')) == Code::kOk);
    auto erased = f.store.find(0, "erased");
    auto held = f.store.find(0, "held");
    CHECK(f.store.erase(0, "erased"));
    CHECK_FALSE(f.store.erase(0, "erased"));
    for (int i = 0; i < 20; ++i) {
      CHECK(put(f.store, 0, "k" + std::to_string(i), page_of('x')) == Code::kOk);
    }
    CHECK(f.store.exists(0, "held"));
    CHECK(f.store.purge(0) == 3);
    CHECK_FALSE(f.store.exists(0, "held"));
    CHECK(text_of(f.store, *erased) == page_of('e'));
    CHECK(text_of(f.store, *held) == page_of('h'));
    CHECK(f.store.counters().sealed_bytes == 2 * kPage);
    erased.reset();
    held.reset();
    CHECK(f.store.counters().sealed_bytes == 0);
  });
}

TEST_CASE("a lease can be moved, and pins once") {
  Fixture f("lru");
  REQUIRE(put(f.store, 0, "a", "1") == Code::kOk);
  REQUIRE(put(f.store, 0, "b", "2") == Code::kOk);
  {
    Lease first = std::move(*f.store.find(0, "a"));
    Lease second = std::move(*f.store.find(0, "b"));
    CHECK(f.store.counters().pins == 2);
    first = std::move(second);
    CHECK(f.store.counters().pins == 1);
    CHECK(first.key() == "b");
    Lease& same = first;
    first = std::move(same);
    CHECK(f.store.counters().pins == 1);
    CHECK(text_of(f.store, first) == "2");
  }
  CHECK(f.store.counters().pins == 0);
}

TEST_CASE("a pool full of pins is out of memory, and usable when they end") {
  for_each_policy([](auto policy) {
    Fixture f(policy, 2);
    REQUIRE(put(f.store, 0, "a", page_of('a')) == Code::kOk);
    REQUIRE(put(f.store, 0, "b", page_of('b')) == Code::kOk);
    {
      const auto a = f.store.find(0, "a");
      const auto b = f.store.find(0, "b");
      CHECK(put(f.store, 0, "c", "c") == Code::kOutOfMemory);
      CHECK(f.store.evict(1) == 0);
    }
    CHECK(put(f.store, 0, "c", "c") == Code::kOk);
  });
}

TEST_CASE("a pool full of reservations is out of memory, and they are never evicted") {
  for_each_policy([](auto policy) {
    Fixture f(policy, 2);
    auto first = f.reserve("a", kPage);
    auto second = f.reserve("b", kPage);
    REQUIRE((first.ok() && second.ok()));
    CHECK(f.reserve("c", 1).code() == Code::kOutOfMemory);
    CHECK(f.store.evict(2 * kPage) == 0);
    CHECK(fill(f.store, *first, 0, page_of('a')) == Code::kOk);
    CHECK(std::move(*first).seal() == Code::kOk);
    CHECK(put(f.store, 0, "c", "c") == Code::kOk);
  });
}

TEST_CASE("a value larger than the pool is too large, and as large as it fits") {
  for_each_policy([](auto policy) {
    Fixture f(policy, 4);
    REQUIRE(put(f.store, 0, "small", "s") == Code::kOk);
    CHECK(f.reserve("large", 4 * kPage + 1).code() == Code::kTooLarge);
    CHECK(f.reserve("large", UINT64_MAX).code() == Code::kTooLarge);
    CHECK(f.store.exists(0, "small"));
    CHECK(put(f.store, 0, "large", page_of('L', 4)) == Code::kOk);
  });
}

TEST_CASE("values beyond 4 GiB are kept and addressed in 64 bits") {
  auto pool = Pool::create({.bytes = std::uint64_t{7} << 30, .populate_on_touch = true});
  REQUIRE(pool.ok());
  Store store(std::move(*pool), options_with("lru"), still_clock());
  const std::uint64_t bytes = (std::uint64_t{5} << 30) + 24;
  const std::uint64_t half = std::uint64_t{4} << 30;
  auto reservation = store.reserve({.key = "huge", .value_bytes = bytes});
  REQUIRE(reservation.ok());
  const std::string end = "the last 24 bytes of it.";
  REQUIRE(reservation->claim({.offset = 0, .bytes = half}) == Code::kOk);
  reservation->filled({.offset = 0, .bytes = half}, 1);
  REQUIRE(reservation->claim({.offset = half, .bytes = bytes - half - 24}) == Code::kOk);
  reservation->filled({.offset = half, .bytes = bytes - half - 24}, 2);
  REQUIRE(fill(store, *reservation, bytes - 24, end) == Code::kOk);
  REQUIRE(std::move(*reservation).seal() == Code::kOk);
  const auto lease = store.find(0, "huge");
  REQUIRE(lease);
  CHECK(lease->value_bytes() == bytes);
  CHECK(testing::read_at(store.pool(), lease->extents(), {.offset = bytes - 24, .bytes = 24}) ==
        end);
  auto last = lease->range_checksum({.offset = bytes - 24, .bytes = 24});
  CHECK(*last == checksum(bytes_of(end), bytes - 24));
  auto whole = lease->range_checksum({.offset = 0, .bytes = bytes});
  CHECK(*whole == 3 + *last);
  CHECK(store.check_integrity() == "");
}

TEST_CASE("ranges of a staged value are claimed once, and a failed one again") {
  Fixture f("lru");
  auto reservation = f.reserve("key", 30);
  REQUIRE(reservation.ok());
  CHECK(reservation->claim({.offset = 10, .bytes = 10}) == Code::kOk);
  CHECK(reservation->claim({.offset = 10, .bytes = 10}) == Code::kExists);
  CHECK(reservation->claim({.offset = 5, .bytes = 10}) == Code::kInvalid);
  reservation->unclaim({.offset = 10, .bytes = 10});
  CHECK_FALSE(reservation->is_claimed());
  for (const std::uint64_t offset : {20, 0, 10}) {
    CHECK(fill(f.store, *reservation, offset, "0123456789") == Code::kOk);
  }
  CHECK(reservation->filled_ranges() == std::vector<Range>{{0, 30}});
  CHECK(std::move(*reservation).seal() == Code::kOk);
  CHECK(get(f.store, 0, "key") == "012345678901234567890123456789");
}

TEST_CASE("an operator sees staged values, their ranges and for how long they stand still") {
  ManualClock clock;
  Store store(pool_of(8 * kPage), options_with("lru"), clock);
  const NamespaceId space = store.intern("model").value();
  auto reservation = store.reserve({.space = space, .key = "key", .value_bytes = 30});
  REQUIRE(reservation.ok());
  REQUIRE(fill(store, *reservation, 20, "0123456789") == Code::kOk);
  clock.advance(5);
  const auto views = store.staged(10);
  REQUIRE(views.size() == 1);
  CHECK(views[0].space == "model");
  CHECK(views[0].key == "key");
  CHECK(views[0].value_bytes == 30);
  CHECK(views[0].filled_bytes == 10);
  CHECK(views[0].filled == std::vector<Range>{{20, 10}});
  CHECK(views[0].idle == 5);
  CHECK(store.staged(0).empty());
}

TEST_CASE("more than the cap unsealed is overloaded, but one value alone always fits") {
  StoreOptions options = options_with("lru");
  options.staged_bytes_max = 2 * kPage;
  Store store(pool_of(16 * kPage), options, still_clock());
  const auto reserve = [&](std::string_view key, std::uint64_t pages) {
    return store.reserve({.key = key, .value_bytes = pages * kPage});
  };
  {
    auto first = reserve("a", 1);
    auto second = reserve("b", 1);
    CHECK(second.ok());
    CHECK(reserve("c", 1).code() == Code::kOverloaded);
  }
  CHECK(reserve("large", 9).ok());
  CHECK(reserve("c", 2).ok());
  CHECK(store.check_integrity() == "");
}

TEST_CASE("a quarter of the pool may be unsealed unless told otherwise") {
  Store store(pool_of(400 * kPage), {}, still_clock());
  std::vector<Reservation> held;
  for (int i = 0; i < 100; ++i) {
    auto reservation = store.reserve({.key = "k" + std::to_string(i), .value_bytes = kPage});
    REQUIRE(reservation.ok());
    held.push_back(std::move(*reservation));
  }
  CHECK(store.reserve({.key = "more", .value_bytes = 1}).code() == Code::kOverloaded);
  held.pop_back();
  CHECK(store.reserve({.key = "more", .value_bytes = 1}).ok());
}

TEST_CASE("quarantined extents belong to nobody until the quarantine ends") {
  for_each_policy([](auto policy) {
    Fixture f(policy, 2);
    auto reservation = f.reserve("key", 2 * kPage);
    REQUIRE(reservation.ok());
    {
      const Quarantine quarantine = std::move(*reservation).quarantine();
      CHECK(quarantine.bytes() == 2 * kPage);
      CHECK_FALSE(f.store.is_written(0, "key"));
      CHECK(f.store.staged(10).empty());
      CHECK(f.store.counters().quarantined_bytes == 2 * kPage);
      CHECK(f.store.counters().reserved_bytes == 0);
      CHECK(f.reserve("other", 1).code() == Code::kOutOfMemory);
      CHECK(f.store.check_integrity() == "");
    }
    CHECK(f.store.counters().free_bytes == 2 * kPage);
    CHECK(f.reserve("other", 1).ok());
  });
}

TEST_CASE("namespaces never see each other's keys") {
  for_each_policy([](auto policy) {
    Fixture f(policy);
    const NamespaceId a = f.store.intern("a").value();
    const NamespaceId b = f.store.intern("b").value();
    CHECK(a != b);
    CHECK(f.store.intern("a").value() == a);
    CHECK(f.store.space_name(b) == "b");
    REQUIRE(put(f.store, a, "key", "in a") == Code::kOk);
    CHECK_FALSE(f.store.exists(b, "key"));
    CHECK(put(f.store, b, "key", "another") == Code::kOk);
    CHECK(get(f.store, a, "key") == "in a");
    CHECK_FALSE(f.store.erase(f.store.intern("c").value(), "key"));
    CHECK(f.store.counters().namespaces == 3);
    CHECK(f.store.key_count(a) == 1);
    CHECK(f.store.key_count(std::nullopt) == 2);
    CHECK(f.store.purge(a) == 1);
    CHECK(f.store.key_count(a) == 0);
    CHECK(get(f.store, b, "key") == "another");
  });
}

TEST_CASE("only so many namespaces are kept, and those that are there stay of use") {
  Fixture f("lru");
  const NamespaceId first = f.store.intern("first").value();
  std::size_t count = 1;
  while (f.store.intern("n" + std::to_string(count))) ++count;
  CHECK(count == kNamespacesMax);
  CHECK(f.store.counters().namespaces == kNamespacesMax);
  CHECK_FALSE(f.store.intern(""));
  CHECK(f.store.intern("first") == first);
  CHECK(put(f.store, first, "key", "value") == Code::kOk);
  CHECK(get(f.store, first, "key") == "value");
}

TEST_CASE("a purge fences what was reserved before it, and nothing after") {
  for_each_policy([](auto policy) {
    Fixture f(policy);
    auto before = f.reserve("before", 1);
    REQUIRE(before.ok());
    CHECK(fill(f.store, *before, 0, "b") == Code::kOk);
    auto elsewhere =
        f.store.reserve({.space = f.store.intern("b").value(), .key = "key", .value_bytes = 1});
    CHECK(fill(f.store, *elsewhere, 0, "e") == Code::kOk);
    CHECK(f.store.purge(0) == 0);
    auto after = f.reserve("after", 1);
    CHECK(fill(f.store, *after, 0, "a") == Code::kOk);
    CHECK(std::move(*before).seal() == Code::kAborted);
    CHECK(std::move(*after).seal() == Code::kOk);
    CHECK(std::move(*elsewhere).seal() == Code::kOk);
    CHECK_FALSE(f.store.exists(0, "before"));
    CHECK(f.store.exists(0, "after"));
  });
}

TEST_CASE("a corrupt value is dropped, but not the one that took its place") {
  for_each_policy([](auto policy) {
    Fixture f(policy);
    REQUIRE(put(f.store, 0, "key", "old") == Code::kOk);
    const auto old = f.store.find(0, "key");
    REQUIRE(put(f.store, 0, "key", "new", OnExists::kReplace) == Code::kOk);
    f.store.drop_corrupt(*old);
    CHECK(get(f.store, 0, "key") == "new");
    const auto current = f.store.find(0, "key");
    f.store.drop_corrupt(*current);
    CHECK_FALSE(f.store.exists(0, "key"));
    CHECK(f.store.counters().corrupt == 2);
  });
}

TEST_CASE("a caller's eviction frees what it is asked for, if it can") {
  for_each_policy([](auto policy) {
    Fixture f(policy, 32);
    for (int i = 0; i < 32; ++i) {
      REQUIRE(put(f.store, 0, "k" + std::to_string(i), page_of('x')) == Code::kOk);
    }
    CHECK(f.store.evict(0) == 0);
    CHECK(f.store.evict(1) == kPage);
    const std::uint64_t freed = f.store.evict(10 * kPage);
    CHECK(freed == 10 * kPage);
    CHECK(f.store.evict(UINT64_MAX) == 21 * kPage);
    CHECK(f.store.counters().keys == 0);
  });
}

TEST_CASE("the end of every write is told once, with no lock held") {
  std::vector<std::string> ended;
  Store* store_seen = nullptr;
  Store store(pool_of(8 * kPage), options_with("lru"), still_clock(),
              [&](NamespaceId space, std::string_view key) {
                ended.emplace_back(key);
                CHECK_FALSE(store_seen->is_written(space, key));  // would deadlock under the lock
              });
  store_seen = &store;
  REQUIRE(put(store, 0, "sealed", "1") == Code::kOk);
  {
    auto dropped = store.reserve({.key = "dropped", .value_bytes = 1});
  }
  auto held = store.reserve({.key = "quarantined", .value_bytes = 1});
  {
    const Quarantine quarantine = std::move(*held).quarantine();
  }
  CHECK(put(store, 0, "sealed", "1") == Code::kExists);  // nothing was begun
  CHECK(ended == std::vector<std::string>{"sealed", "dropped", "quarantined"});
}

TEST_CASE("a reservation that is assigned over gives up its value") {
  Fixture f("lru");
  auto first = f.reserve("a", 1);
  auto second = f.reserve("b", 1);
  *first = std::move(*second);
  CHECK(first->key() == "b");
  CHECK_FALSE(f.store.is_written(0, "a"));
  CHECK(f.store.is_written(0, "b"));
}

}  // namespace
}  // namespace infinistore
