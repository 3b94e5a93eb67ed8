#pragma once
// Store: keys to immutable values in one pool.  The only door to memory/ and eviction/.
//
//   writer: reserve() -> claim() and fill ranges -> filled() -> seal()   dropped unsealed: as if
//   never reader: find()    -> read Lease::extents()   -> drop it              the bytes cannot
//   move meanwhile
//
// Thread-safe.  Lock order: a shard, then the pool; no call is made to another layer under either.
// Invariant, whenever no lock is held: free + reserved + quarantined + sealed = capacity, where
// sealed includes entries that were erased but are still pinned.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/memory/pool.h"
#include "core/store/entry.h"
#include "core/store/eviction/reuse_tuning.h"
#include "core/store/past/departures.h"
#include "core/store/past/hit_curve.h"
#include "core/store/past/views.h"
#include "core/store/quota/quotas.h"

namespace infinistore {

class Heat;
class Scrub;
class Shard;
class Store;
class ValueCheck;
struct ReservationState;

// What will be done with keys: a reserve() looks into the index, exists() at their entries too, and
// find() or match_prefix() at an entry's neighbours in its policy.
enum class Expect : std::uint8_t { kReserve, kExists, kFind };

// What a writer says of a value before its bytes.
struct Intent {
  NamespaceId space = 0;
  std::string_view key = {};
  std::uint64_t value_bytes = 0;
  OnExists on_exists = OnExists::kKeep;
  std::string_view parent = {};  // empty: none
  std::uint32_t depth = 0;
  bool claims_whole = false;  // its only range comes at once: as claim() of all of it
};

// Space that nobody sees.  Dropped unsealed it is given back.  Belongs to one thread, and must not
// outlive its Store.
class Reservation {
 public:
  Reservation(Reservation&&) noexcept;
  Reservation& operator=(Reservation&&) noexcept;
  ~Reservation();

  std::string_view key() const noexcept;
  std::uint64_t value_bytes() const noexcept;
  const Extents& extents() const noexcept;

  // Asks to fill `range`.  kOk: go on; kExists: filled before, or claimed, with equal bounds;
  // kInvalid: out of bounds, empty, overlapping another range in part, or one too many
  // (kRangesPerValueMax).
  Code claim(Range range) noexcept;
  void filled(Range range, std::uint64_t checksum) noexcept;  // a claimed range is complete
  void unclaim(Range range) noexcept;                         // a claimed range was not filled
  bool is_claimed() const noexcept;                           // some range is in flight
  bool is_complete() const noexcept;
  std::uint64_t filled_bytes() const noexcept;
  std::vector<Range> filled_ranges() const;  // adjoining ones as one

  // Publishes a complete value of which no range is claimed.  Else it is dropped: kExists, another
  // writer was first; kSizeMismatch, it was, with another size; kAborted, the namespace was purged
  // since, or of a copy the key was erased or replaced.
  Code seal() && noexcept;
  // filled() and seal() in one, where Intent::claims_whole was asked for.
  Code seal_whole(std::uint64_t checksum) && noexcept;

  // Gives up the value while someone may still write into its extents: they are reused only when
  // the returned object dies.
  class Quarantine quarantine() && noexcept;

 private:
  friend class Store;
  Reservation(Store& store, std::unique_ptr<ReservationState> state) noexcept;
  Code seal_with(std::optional<std::uint64_t> whole_checksum) noexcept;
  void give_up() noexcept;
  Store* store_;
  std::unique_ptr<ReservationState> state_;  // null once sealed, quarantined or moved from
};

// Extents that nobody may use yet; given back when it dies.  Must not outlive its Store.
class Quarantine {
 public:
  Quarantine(Quarantine&&) noexcept;
  Quarantine& operator=(Quarantine&&) noexcept;
  ~Quarantine();
  std::uint64_t bytes() const noexcept;

 private:
  friend class Reservation;
  Quarantine(Store& store, std::unique_ptr<ReservationState> state) noexcept;
  void give_back() noexcept;
  Store* store_;
  std::unique_ptr<ReservationState> state_;  // null once moved from
};

// One pin on a sealed entry: eviction, erase, purge and replace leave its bytes alone while it
// lives. Must not outlive its Store.  May be moved to and dropped on any thread.
//
// A quiet one is a hold instead (Shard::hold): its entry is not used by it, and leaves in its turn.
class Lease {
 public:
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&&) noexcept;
  ~Lease();

  std::string_view key() const noexcept;
  std::uint64_t value_bytes() const noexcept;
  const Extents& extents() const noexcept;
  NamespaceId space() const noexcept;
  bool is_detached() const noexcept;  // no key leads here any more

  // The checksum of a range (docs/protocol.md section 6): the sum of its put ranges' where it is
  // their union and they add up, else the put ranges around it are verified and it is summed
  // afresh; kCorrupt if they do not match, kInvalid if out of bounds.
  Result<std::uint64_t> range_checksum(Range range) const;

 private:
  friend class Heat;
  friend class Scrub;
  friend class Store;
  friend class ValueCheck;
  Lease(Store& store, Entry& entry, bool is_quiet = false) noexcept;
  void unpin() noexcept;
  Store* store_;
  Entry* entry_;  // null once moved from
  bool is_quiet_;
};

struct StoreOptions {
  std::uint32_t shard_count = 16;
  std::string eviction_policy = "lru";  // one of eviction_policy_names()
  ReuseTuning reuse_tuning = {};        // of that policy, if it is the one
  // Unsealed at most, beyond it kOverloaded; 0: kStagedPercentMax of the pool.  One value alone may
  // always be written, however large.
  std::uint64_t staged_bytes_max = 0;
  std::uint64_t hash_seed = 0;  // random where keys come from strangers
  std::vector<QuotaOptions> quotas = {};
};

// A value being written, as an operator sees it.
struct StagedView {
  std::string space;
  std::string key;
  std::uint64_t value_bytes = 0;
  std::uint64_t filled_bytes = 0;
  std::vector<Range> filled;  // adjoining ones as one
  Nanos idle = 0;             // since its last claim or fill
};

struct StoreCounters {
  std::uint64_t capacity_bytes = 0, free_bytes = 0, reserved_bytes = 0, quarantined_bytes = 0,
                sealed_bytes = 0, populated_bytes = 0;
  std::uint64_t keys = 0, namespaces = 0, staged_values = 0, pins = 0;
  std::uint64_t hits = 0, misses = 0;  // keys asked for
  // The misses by what became of the key, or of the first missing one of its prompt.
  std::uint64_t misses_new = 0, misses_evicted = 0, misses_erased = 0;
  std::uint64_t seals = 0, exists = 0, evictions = 0, evicted_bytes = 0, erased = 0, aborted = 0,
                refused = 0, corrupt = 0;

  // By how much free + reserved + quarantined + sealed is not the capacity: 0, or memory is lost or
  // owned twice.
  std::uint64_t unaccounted_bytes() const noexcept {
    const std::uint64_t owned = free_bytes + reserved_bytes + quarantined_bytes + sealed_bytes;
    return owned < capacity_bytes ? capacity_bytes - owned : owned - capacity_bytes;
  }
};

class Store {
 public:
  // Stops the process if the policy has no name in the table: check the options first.
  // `on_write_end` is called after a key that was being written was sealed or given up, on the
  // thread that did it, with no lock held; it may be empty.
  using WriteEnd = std::function<void(NamespaceId, std::string_view key)>;

  Store(Pool pool, StoreOptions options, const Clock& clock, WriteEnd on_write_end = {});
  ~Store();

  // The number of a namespace; made at first use, never given to another name.  0 is "", which
  // counts as a namespace once it is interned.  nullopt: there are kNamespacesMax others already,
  // or kNamespacesPerOwnerMax of its owner.
  std::optional<NamespaceId> intern(std::string_view space);
  // Of an interned namespace; stays where it is.
  SpaceUse& use_of(NamespaceId space);
  std::string space_name(NamespaceId space) const;

  // Evicts as needed.  kExists: sealed already with this size (and on_exists is kKeep);
  // kSizeMismatch: with another size; kTooLarge: more than the pool, or than its owner's quota;
  // kOverloaded: too much is unsealed; kQuotaExceeded: all that its owner holds is pinned or
  // reserved, kOutOfMemory: all in the pool; kInvalid: an empty key or value, or a name that is too
  // long.
  // Several writers may hold a reservation of one key: the first seal wins.
  Result<Reservation> reserve(const Intent& intent);

  // Brings what the next calls for these keys will look at into the caches: all misses of memory at
  // once instead of one after the other.  Takes the first kExpectedKeysMax of them.
  static constexpr std::size_t kExpectedKeysMax = 256;
  void expect(NamespaceId space, std::span<const std::string_view> keys,
              Expect what) const noexcept;
  // body(i) for each of the keys, in order and expected.  Three times as fast as without at a
  // million keys.
  template <class Body>
  void for_each_expected(NamespaceId space, std::span<const std::string_view> keys, Expect what,
                         Body body) const {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (i % kExpectedKeysMax == 0) expect(space, keys.subspan(i), what);
      body(i);
    }
  }

  // nullopt if the key is absent or not sealed yet: a miss is an answer, not an error.
  // Not `counted`: it was asked for before, and has been counted then.
  std::optional<Lease> find(NamespaceId space, std::string_view key, bool counted = true);

  // The same for who only looks at the bytes: a quiet lease, no hit and no miss.
  std::optional<Lease> find_quietly(NamespaceId space, std::string_view key);

  // How many blocks of `group` keys each, from the first on, are wholly sealed; with `leases` not
  // null their keys are pinned into it, in order.  At one moment all of them were there.  All keys
  // count as asked for, those of whole blocks as hits; what it found counts as used, the first key
  // last: so a prefix outlives what follows it.
  std::size_t match_prefix(NamespaceId space, std::span<const std::string_view> keys,
                           std::size_t group, std::vector<Lease>* leases);

  bool exists(NamespaceId space, std::string_view key) const;
  bool is_written(NamespaceId space, std::string_view key) const;  // someone has it reserved

  // Returns whether the key was there.  Bytes under a lease live until the lease ends.
  bool erase(NamespaceId space, std::string_view key);
  // The bytes did not match their checksum: like erase, if the key still maps to this very entry.
  void drop_corrupt(const Lease& lease);
  std::size_t purge(
      NamespaceId space);  // erases all of its keys, and fences its reservations:
                           // what was reserved before is dropped at its seal (kAborted)
  std::uint64_t evict(std::uint64_t bytes);  // frees so much if it can; returns what it freed

  std::size_t key_count(std::optional<NamespaceId> space) const;
  StoreCounters counters() const;
  QuotaUse quota_use(std::string_view owner) const noexcept;
  std::vector<StagedView> staged(std::size_t count_max) const;

  // past/past.cpp: why a key is or is not there, and where else it is; who lives here; what hit
  // rates pools of other sizes would have had.
  // Takes kExplainedKeysMax keys at most.
  std::vector<KeyAnswer> explain(std::string_view space,
                                 std::span<const std::string_view> keys) const;
  std::vector<SpaceView> spaces() const;
  HitCurve::Picture hit_curve(std::span<const std::uint64_t> pool_bytes) const;
  Pool& pool() noexcept;

  // Every page is free or has one owner, every sealed unpinned entry is in its policy, counters add
  // up.  Returns what is wrong, empty if nothing.  For tests and `verify`: stops the world.
  std::string check_integrity() const;

 private:
  friend class Reservation;
  friend class Quarantine;
  friend class Heat;
  friend class Lease;
  friend class Scrub;
  struct Impl;

  KeyRef ref_of(NamespaceId space, std::string_view key) const noexcept;
  std::size_t shard_index_of(std::uint64_t hash) const noexcept;
  Shard& shard_of(std::uint64_t hash) const noexcept;
  bool may_fit(const Intent& intent) const noexcept;  // alone in the pool, and in its quota
  // These say whether it is worth while to ask again.
  bool make_room(Code lack, const Intent& intent);
  bool make_room_in_pool(std::uint64_t value_bytes, NamespaceId pressing);
  bool make_room_in_quota(std::uint64_t value_bytes, NamespaceId space);
  std::uint64_t evict_for(std::uint64_t bytes, const Departure& why);
  std::uint64_t evict_of(QuotaId quota, std::uint64_t bytes, const Departure& why);
  void note_asked(NamespaceId space, std::span<const std::string_view> keys,
                  std::span<const Lease> found);
  void write_ended(NamespaceId space, std::string_view key) const;
  Nanos now() const noexcept;

  std::unique_ptr<Impl> impl_;
};

}  // namespace infinistore
