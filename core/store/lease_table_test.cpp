#include "core/store/lease_table.h"

#include <doctest/doctest.h>

#include <limits>
#include <set>
#include <thread>

#include "core/base/limits.h"
#include "core/store/store_testing.h"

namespace infinistore {
namespace {

using testing::options_with;
using testing::pool_of;
using testing::put;
using testing::still_clock;

constexpr NamespaceId kSpace = 0;

struct Fixture {
  Store store{pool_of(1 << 20), options_with("lru"), still_clock()};
  LeaseTable table{77};

  Fixture() {
    for (int i = 0; i < 8; ++i) REQUIRE(put(store, 0, "k" + std::to_string(i), "v") == Code::kOk);
  }
  LeaseId lease(int first, int count, Nanos deadline, OwnerId owner) {
    std::vector<Lease> pins;
    for (int i = first; i < first + count; ++i) {
      pins.push_back(std::move(*store.find(0, "k" + std::to_string(i))));
    }
    return table.create(std::move(pins), deadline, owner);
  }
  std::uint64_t pins() const { return store.counters().pins; }
};

TEST_CASE("a lease pins its keys until it is released, once") {
  Fixture f;
  const LeaseId lease = f.lease(0, 3, 100, 1);
  CHECK(lease != 0);
  CHECK(f.pins() == 3);
  CHECK(f.table.contains(lease, kSpace));
  CHECK(f.table.count() == 1);
  CHECK(f.table.key_count() == 3);
  CHECK(f.table.release(lease, kSpace) == Code::kOk);
  CHECK(f.table.release(lease, kSpace) == Code::kLeaseExpired);
  CHECK_FALSE(f.table.contains(lease, kSpace));
  CHECK(f.pins() == 0);
  CHECK(f.table.key_count() == 0);
}

TEST_CASE("who serves another namespace can do nothing to a lease, even knowing its number") {
  Fixture f;
  const LeaseId lease = f.lease(0, 1, 100, 1);
  constexpr NamespaceId kOther = 1;
  CHECK_FALSE(f.table.contains(lease, kOther));
  CHECK(f.table.renew(lease, kOther, 200) == Code::kLeaseExpired);
  CHECK(f.table.release(lease, kOther) == Code::kLeaseExpired);
  CHECK(f.table.next_deadline() == 100);
  CHECK(f.pins() == 1);
  CHECK(f.table.release(lease, kSpace) == Code::kOk);
}

TEST_CASE("a lease of nothing is not created") {
  Fixture f;
  CHECK(f.table.create({}, 100, 1) == 0);
  CHECK(f.table.count() == 0);
}

TEST_CASE("a lease ends at its deadline, unless it is renewed") {
  Fixture f;
  const LeaseId early = f.lease(0, 1, 100, 1);
  const LeaseId late = f.lease(1, 1, 100, 1);
  CHECK(f.table.next_deadline() == 100);
  CHECK(f.table.renew(late, kSpace, 200) == Code::kOk);
  CHECK(f.table.expire(99) == 0);
  CHECK(f.table.expire(100) == 1);
  CHECK_FALSE(f.table.contains(early, kSpace));
  CHECK(f.table.contains(late, kSpace));
  CHECK(f.table.next_deadline() == 200);
  CHECK(f.table.renew(early, kSpace, 300) == Code::kLeaseExpired);
  CHECK(f.table.expire(1'000) == 1);
  CHECK(f.pins() == 0);
  CHECK(f.table.next_deadline() == std::numeric_limits<Nanos>::max());
}

TEST_CASE("a session's end drops its leases and no other's") {
  Fixture f;
  f.lease(0, 2, 100, 1);
  f.lease(2, 2, 100, 1);
  const LeaseId other = f.lease(4, 2, 100, 2);
  CHECK(f.table.drop_owner(1) == 2);
  CHECK(f.table.drop_owner(1) == 0);
  CHECK(f.table.contains(other, kSpace));
  CHECK(f.pins() == 2);
  CHECK(f.table.release(other, kSpace) == Code::kOk);
}

TEST_CASE("numbers are never 0, never reused, and not those of another seed") {
  Fixture f;
  LeaseTable same(77);
  LeaseTable other(78);
  const auto one_pin = [&f] {
    std::vector<Lease> pins;
    pins.push_back(std::move(*f.store.find(0, "k0")));
    return pins;
  };
  std::set<LeaseId> seen;
  LeaseId first = 0;
  for (int i = 0; i < 1'000; ++i) {
    const LeaseId lease = f.lease(0, 1, 100, 1);
    if (i == 0) first = lease;
    CHECK(lease != 0);
    CHECK(seen.insert(lease).second);
    CHECK(f.table.release(lease, kSpace) == Code::kOk);
  }
  CHECK(same.create(one_pin(), 1, 1) == first);
  CHECK(other.create(one_pin(), 1, 1) != first);
  same.expire(1);
  other.expire(1);
}

TEST_CASE("leases pin a bounded number of keys, and the one too many pins nothing") {
  Fixture f;
  constexpr int kTimes = 16;
  for (int i = 0; i < kTimes; ++i) {
    std::vector<Lease> pins;
    for (std::size_t j = 0; j < kLeaseKeysMax / kTimes; ++j) {
      pins.push_back(std::move(*f.store.find(0, "k0")));
    }
    REQUIRE(f.table.create(std::move(pins), 100, 1) != 0);
  }
  CHECK(f.table.key_count() == kLeaseKeysMax);
  CHECK(f.lease(1, 1, 100, 1) == 0);
  CHECK(f.pins() == kLeaseKeysMax);
  CHECK(f.table.drop_owner(1) == kTimes);
  CHECK(f.lease(1, 1, 100, 1) != 0);
  f.table.drop_owner(1);
}

TEST_CASE("threads may take, renew, release and expire at once") {
  Fixture f;
  std::vector<std::thread> threads;
  for (OwnerId owner = 1; owner <= 3; ++owner) {
    threads.emplace_back([&f, owner] {
      for (int i = 0; i < 500; ++i) {
        const LeaseId lease = f.lease(i % 7, 2, 1'000 + i, owner);
        f.table.renew(lease, kSpace, 2'000 + i);
        if (i % 3 == 0) f.table.release(lease, kSpace);
        if (i % 50 == 0) f.table.expire(2'000 + i / 2);
        if (i % 100 == 0) f.table.drop_owner(owner);
      }
      f.table.drop_owner(owner);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(f.table.count() == 0);
  CHECK(f.pins() == 0);
  CHECK(f.store.check_integrity() == "");
}

}  // namespace
}  // namespace infinistore
