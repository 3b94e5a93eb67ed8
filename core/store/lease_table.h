#pragma once
// LeaseTable: pins that clients hold across requests, by number, until a deadline.
//
// Thread-safe.  Its lock is never held while a pin is dropped, so it stands in no lock order.

#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/store/store.h"

namespace infinistore {

using LeaseId = std::uint64_t;  // 0: none
using OwnerId = std::uint64_t;  // a session

class LeaseTable {
 public:
  // Numbers are a permutation of 1, 2, 3, ... that `seed` chooses: with a random one nobody hits
  // upon another's by chance.  Who knows one of them can work out others: `space` is the guard.
  explicit LeaseTable(std::uint64_t seed = 0) noexcept : seed_(seed) {}

  // Never reuses a number.  0 if there are no pins, or too many already (kLeaseKeysMax): they are
  // dropped then.
  LeaseId create(std::vector<Lease> pins, Nanos deadline, OwnerId owner);

  // Whoever knows the number and serves the same namespace may use it: a scheduler takes a lease,
  // its workers end it.  kLeaseExpired: it is not, or no longer, there.
  Code renew(LeaseId lease, NamespaceId space, Nanos deadline);
  Code release(LeaseId lease, NamespaceId space);
  bool contains(LeaseId lease, NamespaceId space) const;

  std::size_t expire(Nanos now);          // those whose deadline is not after `now`
  std::size_t drop_owner(OwnerId owner);  // those that a session took

  std::size_t count() const;
  std::size_t key_count() const;  // pins in all
  Nanos next_deadline() const;    // of the first to expire; the largest Nanos if none

 private:
  struct Held {
    std::vector<Lease> pins;
    OwnerId owner = 0;
    Nanos deadline = 0;

    bool is_of(NamespaceId space) const noexcept { return pins.front().space() == space; }
  };
  LeaseId next_id_locked() noexcept REQUIRES(mutex_);
  std::vector<Lease> remove_locked(LeaseId lease) REQUIRES(mutex_);

  const std::uint64_t seed_;
  mutable Mutex mutex_;
  std::uint64_t created_count_ GUARDED_BY(mutex_) = 0;
  std::size_t key_count_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<LeaseId, Held> held_ GUARDED_BY(mutex_);
  std::set<std::pair<Nanos, LeaseId>> by_deadline_ GUARDED_BY(mutex_);
  std::set<std::pair<OwnerId, LeaseId>> by_owner_ GUARDED_BY(mutex_);
};

}  // namespace infinistore
