#pragma once
// Shard: one part of the key space: its index, policy, reservations and lock.
//
// Every call locks for itself and is one step for all others.  Under the lock it calls the pool and
// its policy only.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/memory/pool.h"
#include "core/store/eviction/policy.h"
#include "core/store/index.h"
#include "core/store/past/departures.h"
#include "core/store/quota/seats.h"
#include "core/store/reservation_state.h"
#include "core/store/store.h"

namespace infinistore {

// What may be unsealed, over all shards.
class StagedBudget {
 public:
  explicit StagedBudget(std::uint64_t bytes_max) noexcept : bytes_max_(bytes_max) {}

  // One value alone always fits: else a large one could never be written.
  bool take(std::uint64_t bytes) noexcept;
  void give(std::uint64_t bytes) noexcept { bytes_ -= bytes; }
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  const std::uint64_t bytes_max_;
  std::atomic<std::uint64_t> bytes_{0};
};

// How many times entries of the store were used: the order of uses over all shards.
using UseCount = std::atomic<std::uint64_t>;

class alignas(64) Shard {
 public:
  Shard(Pool& pool, StagedBudget& budget, Quotas& quotas, UseCount& uses,
        std::unique_ptr<EvictionPolicy> policy, std::size_t departures_max);
  ~Shard();
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  // A reservation begins here and ends in seal(), give_up() or end_quarantine().
  // kOutOfMemory: make room and ask again.
  Result<std::unique_ptr<ReservationState>> reserve(const KeyRef& ref, const Intent& intent,
                                                    std::uint64_t parent_hash, Nanos now);
  void count_refused() noexcept;
  Code claim(ReservationState& state, Range range, Nanos now);
  void filled(ReservationState& state, Range range, std::uint64_t checksum, Nanos now) noexcept;
  void unclaim(ReservationState& state, Range range) noexcept;
  // kOk, kExists, kSizeMismatch (as another writer was first), kAborted (fenced).
  // `whole_checksum`: the value's claimed whole is filled.
  Code seal(ReservationState& state, std::optional<std::uint64_t> whole_checksum) noexcept;
  void give_up(ReservationState& state) noexcept;
  void begin_quarantine(ReservationState& state) noexcept;
  void end_quarantine(ReservationState& state) noexcept;

  // Each pin ends in unpin().  nullptr: a miss.  Only `counted` ones are hits and misses.
  Entry* pin(const KeyRef& ref, bool counted) noexcept;
  void unpin(Entry& entry) noexcept;
  // A hold keeps the bytes where they are, as a pin does, but is no use of the entry: what is held
  // leaves in its turn, and its bytes become free with the hold's end.  Each ends in unhold().
  // nullptr: a miss, or kHoldsMax are there.
  Entry* hold(const KeyRef& ref) noexcept;
  // Holds what Index::walk() finds next; `is_end`: nothing is left.
  Entry* hold_next(Index::Place& at, std::size_t groups_max, bool& is_end) noexcept;
  void unhold(Entry& entry) noexcept;
  // Under the lock: at the sealed entry with that hash, if any; at all in the next groups of a
  // walk, until it returns false.
  using Look = std::function<void(const Entry&)>;
  void look_at(std::uint64_t hash, const Look& look) const;
  bool look_on(Index::Place& at, std::size_t groups_max, const Look& look) const;
  bool is_detached(const Entry& entry) const noexcept;
  void count_hits(NamespaceId space, std::size_t keys) noexcept;
  // Keys that were asked for in vain, all of them for want of `first`.
  void count_misses(const KeyRef& first, std::size_t keys) noexcept;
  bool contains(const KeyRef& ref) const noexcept;
  // Store::expect() for those of `refs` that are picked.
  void expect(std::span<const KeyRef> refs, std::span<const std::uint16_t> picks,
              Expect what) const noexcept;
  bool is_written(const KeyRef& ref) const noexcept;

  // What became of a key.
  KeyStory story(const KeyRef& ref) const noexcept;

  bool erase(const KeyRef& ref, Nanos now) noexcept;
  void drop_corrupt(Entry& entry, Nanos now) noexcept;
  std::size_t purge(NamespaceId space, Nanos now);
  // The place of a line's first entry; kNoPlace: there is none.  A hint for others.
  std::uint64_t first_place(std::size_t line) const noexcept {
    return first_places_[line].load(std::memory_order_relaxed);
  }
  // Evicts from a line until so much is free, but nothing of a higher place; returns what it freed.
  std::uint64_t evict(std::uint64_t bytes, std::size_t line, std::uint64_t place_max,
                      const Departure& why);
  // The same of an owner's entries alone, for its quota.
  std::uint64_t first_seat(QuotaId quota) const noexcept {
    return first_seats_[quota].load(std::memory_order_relaxed);
  }
  std::uint64_t evict_of(QuotaId quota, std::uint64_t bytes, std::uint64_t place_max,
                         const Departure& why);
  std::size_t key_count(NamespaceId space) const noexcept;
  void add_space_counts(std::vector<SpaceCounts>& sum) const;  // one for each namespace's number

  // For those who look at all shards at one moment: lock them in the order of their indexes.
  Mutex& mutex() const noexcept RETURN_CAPABILITY(mutex_) { return mutex_; }
  std::size_t size_locked() const noexcept REQUIRES(mutex_) { return sealed_.size(); }
  void add_counters_locked(StoreCounters& sum) const noexcept REQUIRES(mutex_);
  template <class Body>
  void for_each_staged_locked(Body body) const REQUIRES(mutex_) {
    states_.for_each([&body](const ReservationState& state) {
      if (!state.is_quarantined) body(state);
    });
  }
  // Adds all extents that this shard owns to `owned`; returns what is wrong, empty if nothing.
  using IsOurs = std::function<bool(const Entry&)>;
  std::string check_locked(std::vector<const Extents*>& owned, const IsOurs& is_ours) const
      REQUIRES(mutex_);

 private:
  void begin_locked(ReservationState& state) noexcept REQUIRES(mutex_);
  void fence_copies_locked(const KeyRef& ref) noexcept REQUIRES(mutex_);
  void free_locked(const Entry& entry) noexcept REQUIRES(mutex_);
  void end_locked(ReservationState& state) noexcept REQUIRES(mutex_);
  void publish_locked(EntryPtr entry) noexcept REQUIRES(mutex_);
  EntryPtr detach_locked(Entry& entry) noexcept
      REQUIRES(mutex_);  // null if it is pinned or held: the last of those ends it
  SpaceCounts& counts_of_locked(NamespaceId space) noexcept REQUIRES(mutex_);
  void count_misses_locked(const KeyRef& first, std::size_t keys) noexcept REQUIRES(mutex_);
  EntryPtr release_locked(Entry& entry) noexcept REQUIRES(mutex_);       // gives its bytes back
  EntryPtr end_detached_locked(Entry& entry) noexcept REQUIRES(mutex_);  // null: not the last
  void make_evictable_locked(Entry& entry, Arrival arrival) noexcept REQUIRES(mutex_);
  void make_unevictable_locked(Entry& entry) noexcept REQUIRES(mutex_);
  void announce_firsts_locked() noexcept REQUIRES(mutex_);
  void announce_seat_locked(QuotaId quota) noexcept REQUIRES(mutex_);
  struct Leaving;
  void evict_locked(Entry& entry, Leaving& leaving) REQUIRES(mutex_);
  std::string check_sealed_locked(std::vector<const Extents*>& owned, const IsOurs& is_ours) const
      REQUIRES(mutex_);
  std::string check_states_locked(std::vector<const Extents*>& owned) const REQUIRES(mutex_);

  Pool& pool_;
  StagedBudget& budget_;
  Quotas& quotas_;
  UseCount& uses_;
  std::array<std::atomic<std::uint64_t>, kEvictionLinesMax> first_places_;  // written under mutex_
  std::vector<std::atomic<std::uint64_t>> first_seats_;                     // by quota; likewise

  mutable Mutex mutex_;
  const std::unique_ptr<EvictionPolicy> policy_;  // its content: GUARDED_BY(mutex_)
  Seats seats_ GUARDED_BY(mutex_);                // of evictable entries that have one
  Index sealed_ GUARDED_BY(mutex_);               // owns its entries
  Index written_ GUARDED_BY(mutex_);              // entries of states_ that are not quarantined
  IntrusiveList<Entry, &Entry::hook> detached_ GUARDED_BY(mutex_);  // owns its entries
  IntrusiveList<ReservationState, &ReservationState::hook> states_ GUARDED_BY(mutex_);
  std::vector<SpaceCounts> space_counts_ GUARDED_BY(mutex_);  // by namespace
  Departures departures_ GUARDED_BY(mutex_);
  StoreCounters counters_ GUARDED_BY(mutex_);  // this shard's share
};

}  // namespace infinistore
