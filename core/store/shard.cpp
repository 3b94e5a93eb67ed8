#include "core/store/shard.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace infinistore {
namespace {

// What the entry's field can count.
constexpr std::uint8_t kHoldsMax = 127;

}  // namespace

bool StagedBudget::take(std::uint64_t bytes) noexcept {
  const std::uint64_t before = bytes_.fetch_add(bytes);
  if (before == 0 || (before <= bytes_max_ && bytes <= bytes_max_ - before)) return true;
  bytes_ -= bytes;
  return false;
}

Shard::Shard(Pool& pool, StagedBudget& budget, Quotas& quotas, UseCount& uses,
             std::unique_ptr<EvictionPolicy> policy, std::size_t departures_max)
    : pool_(pool),
      budget_(budget),
      quotas_(quotas),
      uses_(uses),
      first_seats_(quotas.quota_count()),
      policy_(std::move(policy)),
      seats_(quotas.quota_count()),
      departures_(departures_max) {
  for (auto& place : first_places_) place = kNoPlace;
  for (auto& place : first_seats_) place = kNoPlace;
}

Shard::~Shard() {
  const MutexLock lock(mutex_);
  // A lease, reservation or quarantine that outlives its store would write into freed memory.
  KV_CHECK(counters_.pins == 0 && detached_.empty() && states_.empty());
  for (std::size_t line = 0; line < policy_->line_count(); ++line) {
    while (Entry* entry = policy_->first(line)) {
      policy_->remove(*entry);
      sealed_.erase(*entry);
      const EntryPtr end(entry);
    }
  }
}

Result<std::unique_ptr<ReservationState>> Shard::reserve(const KeyRef& ref, const Intent& intent,
                                                         std::uint64_t parent_hash, Nanos now) {
  const MutexLock lock(mutex_);
  if (Entry* entry = sealed_.find(ref);
      entry != nullptr && intent.on_exists != OnExists::kReplace) {
    if (entry->value_bytes != intent.value_bytes) return Code::kSizeMismatch;
    ++counters_.exists;
    if (entry->pins == 0) {  // writing what is there is a use of it
      make_unevictable_locked(*entry);
      make_evictable_locked(*entry, Arrival::kHit);
    }
    return Code::kExists;
  }
  const std::uint64_t bytes = whole_pages(intent.value_bytes);
  if (!budget_.take(bytes)) return Code::kOverloaded;
  if (!quotas_.take(ref.space, bytes)) {
    budget_.give(bytes);
    return Code::kQuotaExceeded;
  }
  auto extents = pool_.allocate(intent.value_bytes);
  if (!extents) {
    quotas_.give(ref.space, bytes);
    budget_.give(bytes);
    return Code::kOutOfMemory;
  }
  auto entry = make_entry(ref, quotas_.quota_of(ref.space) != kNoQuota);
  entry->value_bytes = intent.value_bytes;
  entry->extents = std::move(*extents);
  entry->parent_hash = parent_hash;
  entry->depth = intent.depth;
  auto state = std::make_unique<ReservationState>(std::move(entry), intent.on_exists, now);
  if (intent.claims_whole) state->coverage.claim({.offset = 0, .bytes = intent.value_bytes});
  begin_locked(*state);
  return state;
}

void Shard::begin_locked(ReservationState& state) noexcept {
  states_.push_back(state);
  written_.insert(*state.entry);
  ++counters_.staged_values;
  counters_.reserved_bytes += state.entry->pool_bytes();
}

void Shard::fence_copies_locked(const KeyRef& ref) noexcept {
  if (written_.find(ref) == nullptr) return;  // nearly always
  states_.for_each([&](ReservationState& state) {
    if (state.on_exists == OnExists::kCopy && state.entry->has(ref)) state.is_fenced = true;
  });
}

void Shard::end_locked(ReservationState& state) noexcept {
  states_.remove(state);
  written_.erase(*state.entry);
  --counters_.staged_values;
  counters_.reserved_bytes -= state.entry->pool_bytes();
  budget_.give(state.entry->pool_bytes());
}

void Shard::free_locked(const Entry& entry) noexcept {
  quotas_.give(entry.space, entry.pool_bytes());
  pool_.free(entry.extents);
}

void Shard::count_refused() noexcept {
  const MutexLock lock(mutex_);
  ++counters_.refused;
}

Code Shard::claim(ReservationState& state, Range range, Nanos now) {
  const MutexLock lock(mutex_);
  state.touched_at = now;
  return state.coverage.claim(range);
}

void Shard::filled(ReservationState& state, Range range, std::uint64_t checksum,
                   Nanos now) noexcept {
  const MutexLock lock(mutex_);
  state.touched_at = now;
  state.coverage.filled(range, checksum);
}

void Shard::unclaim(ReservationState& state, Range range) noexcept {
  const MutexLock lock(mutex_);
  state.coverage.unclaim(range);
}

Code Shard::seal(ReservationState& state, std::optional<std::uint64_t> whole_checksum) noexcept {
  // Many parts before the lock: nobody else reads an unsealed entry's.
  if (!whole_checksum) state.coverage.hand_over(*state.entry);
  EntryPtr replaced;  // freed after the lock
  const MutexLock lock(mutex_);
  end_locked(state);
  if (whole_checksum) {
    state.coverage.filled({.offset = 0, .bytes = state.entry->value_bytes}, *whole_checksum);
    state.coverage.hand_over(*state.entry);
  }
  const KeyRef ref{
      .space = state.entry->space, .key = state.entry->key(), .hash = state.entry->hash};
  Entry* present = sealed_.find(ref);
  Code outcome = Code::kOk;
  if (state.is_fenced) {
    outcome = Code::kAborted;
    ++counters_.aborted;
  } else if (present != nullptr && state.on_exists != OnExists::kReplace) {
    const bool is_equal = present->value_bytes == state.entry->value_bytes;
    outcome = is_equal ? Code::kExists : Code::kSizeMismatch;
    ++counters_.exists;
  }
  if (outcome != Code::kOk) {
    free_locked(*state.entry);
    return outcome;
  }
  if (present != nullptr) replaced = detach_locked(*present);
  state.entry->is_replaced = state.on_exists == OnExists::kReplace;
  if (state.entry->is_replaced) fence_copies_locked(ref);
  publish_locked(std::move(state.entry));
  return outcome;
}

void Shard::publish_locked(EntryPtr entry) noexcept {
  SpaceCounts& counts = counts_of_locked(entry->space);
  ++counts.keys;
  counts.bytes += entry->pool_bytes();
  ++counters_.seals;
  counters_.sealed_bytes += entry->pool_bytes();
  Entry& sealed = *entry.release();
  sealed_.insert(sealed);
  make_evictable_locked(sealed, Arrival::kNew);
}

void Shard::give_up(ReservationState& state) noexcept {
  const MutexLock lock(mutex_);
  end_locked(state);
  ++counters_.aborted;
  free_locked(*state.entry);
}

void Shard::begin_quarantine(ReservationState& state) noexcept {
  const MutexLock lock(mutex_);
  end_locked(state);
  ++counters_.aborted;
  state.is_quarantined = true;
  states_.push_back(state);
  counters_.quarantined_bytes += state.entry->pool_bytes();
}

void Shard::end_quarantine(ReservationState& state) noexcept {
  const MutexLock lock(mutex_);
  states_.remove(state);
  counters_.quarantined_bytes -= state.entry->pool_bytes();
  free_locked(*state.entry);
}

Entry* Shard::pin(const KeyRef& ref, bool counted) noexcept {
  const MutexLock lock(mutex_);
  Entry* entry = sealed_.find(ref);
  if (entry == nullptr) {
    if (counted) count_misses_locked(ref, 1);
    return nullptr;
  }
  if (counted) {
    ++counters_.hits;
    ++counts_of_locked(ref.space).hits;
  }
  if (entry->pins == 0) make_unevictable_locked(*entry);
  ++entry->pins;
  ++counters_.pins;
  return entry;
}

void Shard::unpin(Entry& entry) noexcept {
  EntryPtr ended;  // freed after the lock
  const MutexLock lock(mutex_);
  KV_CHECK(entry.pins > 0);
  --entry.pins;
  --counters_.pins;
  if (entry.pins > 0) return;
  if (entry.is_detached) {
    ended = end_detached_locked(entry);
  } else {
    make_evictable_locked(entry, Arrival::kHit);
  }
}

EntryPtr Shard::end_detached_locked(Entry& entry) noexcept {
  if (entry.pins > 0 || entry.holds > 0) return nullptr;
  detached_.remove(entry);
  return release_locked(entry);
}

Entry* Shard::hold(const KeyRef& ref) noexcept {
  const MutexLock lock(mutex_);
  Entry* entry = sealed_.find(ref);
  if (entry == nullptr || entry->holds == kHoldsMax) return nullptr;
  ++entry->holds;
  return entry;
}

Entry* Shard::hold_next(Index::Place& at, std::size_t groups_max, bool& is_end) noexcept {
  const MutexLock lock(mutex_);
  Entry* entry = sealed_.walk(at, groups_max);
  is_end = entry == nullptr && sealed_.is_end(at);
  if (entry == nullptr || entry->holds == kHoldsMax) return nullptr;
  ++entry->holds;
  return entry;
}

void Shard::unhold(Entry& entry) noexcept {
  EntryPtr ended;  // freed after the lock
  const MutexLock lock(mutex_);
  KV_CHECK(entry.holds > 0);
  --entry.holds;
  if (entry.is_detached) ended = end_detached_locked(entry);
}

void Shard::look_at(std::uint64_t hash, const Look& look) const {
  const MutexLock lock(mutex_);
  if (const Entry* entry = sealed_.find(hash)) look(*entry);
}

bool Shard::look_on(Index::Place& at, std::size_t groups_max, const Look& look) const {
  const MutexLock lock(mutex_);
  sealed_.walk_groups(at, groups_max, look);
  return !sealed_.is_end(at);
}

bool Shard::is_detached(const Entry& entry) const noexcept {
  const MutexLock lock(mutex_);
  return entry.is_detached;
}

void Shard::count_hits(NamespaceId space, std::size_t keys) noexcept {
  const MutexLock lock(mutex_);
  counters_.hits += keys;
  counts_of_locked(space).hits += keys;
}

void Shard::count_misses(const KeyRef& first, std::size_t keys) noexcept {
  const MutexLock lock(mutex_);
  count_misses_locked(first, keys);
}

void Shard::count_misses_locked(const KeyRef& first, std::size_t keys) noexcept {
  counters_.misses += keys;
  counts_of_locked(first.space).misses += keys;
  const auto departure = departures_.find(first.hash);
  if (!departure) {
    counters_.misses_new += keys;
  } else if (is_eviction(departure->reason)) {
    counters_.misses_evicted += keys;
  } else {
    counters_.misses_erased += keys;
  }
}

SpaceCounts& Shard::counts_of_locked(NamespaceId space) noexcept {
  if (space_counts_.size() <= space) space_counts_.resize(space + std::size_t{1});
  return space_counts_[space];
}

bool Shard::contains(const KeyRef& ref) const noexcept {
  const MutexLock lock(mutex_);
  return sealed_.find(ref) != nullptr;
}

void Shard::expect(std::span<const KeyRef> refs, std::span<const std::uint16_t> picks,
                   Expect what) const noexcept {
  constexpr std::size_t kLineBytes = 64;
  const MutexLock lock(mutex_);
  for (const auto pick : picks) {
    sealed_.expect(refs[pick].hash);
    if (what != Expect::kExists) policy_->expect(refs[pick].hash);
  }
  if (what == Expect::kReserve) return;
  for (const auto pick : picks) {
    const Entry* entry = sealed_.candidate(refs[pick].hash);
    if (entry == nullptr) continue;
    const auto* const bytes = reinterpret_cast<const std::byte*>(entry);
    for (std::size_t at = 0; at < sizeof(Entry) + kLineBytes; at += kLineBytes) {
      __builtin_prefetch(bytes + at);
    }
  }
  if (what == Expect::kExists) return;
  for (const auto pick : picks) {
    const Entry* entry = sealed_.candidate(refs[pick].hash);
    if (entry == nullptr) continue;
    __builtin_prefetch(entry->hook.prev);
    __builtin_prefetch(entry->hook.next);
  }
}

bool Shard::is_written(const KeyRef& ref) const noexcept {
  const MutexLock lock(mutex_);
  return written_.find(ref) != nullptr;
}

EntryPtr Shard::detach_locked(Entry& entry) noexcept {
  sealed_.erase(entry);
  --space_counts_[entry.space].keys;
  space_counts_[entry.space].bytes -= entry.pool_bytes();
  if (entry.pins == 0) make_unevictable_locked(entry);
  if (entry.pins == 0 && entry.holds == 0) return release_locked(entry);
  entry.is_detached = true;
  detached_.push_back(entry);
  return nullptr;
}

EntryPtr Shard::release_locked(Entry& entry) noexcept {
  counters_.sealed_bytes -= entry.pool_bytes();
  free_locked(entry);
  return EntryPtr(&entry);
}

bool Shard::erase(const KeyRef& ref, Nanos now) noexcept {
  EntryPtr ended;
  const MutexLock lock(mutex_);
  fence_copies_locked(ref);
  Entry* entry = sealed_.find(ref);
  if (entry == nullptr) return false;
  departures_.note(ref.hash, {.at = now, .reason = Reason::kErased});
  ended = detach_locked(*entry);
  ++counters_.erased;
  return true;
}

void Shard::drop_corrupt(Entry& entry, Nanos now) noexcept {
  const MutexLock lock(mutex_);
  ++counters_.corrupt;
  if (entry.is_detached) return;
  departures_.note(entry.hash, {.at = now, .reason = Reason::kCorrupt});
  const EntryPtr ended = detach_locked(entry);
  KV_CHECK(ended == nullptr);  // the caller's lease keeps it
}

std::size_t Shard::purge(NamespaceId space, Nanos now) {
  std::vector<EntryPtr> ended;
  const MutexLock lock(mutex_);
  std::vector<Entry*> doomed;
  sealed_.for_each([&](Entry& entry) {
    if (entry.space == space) doomed.push_back(&entry);
  });
  for (Entry* entry : doomed) {
    departures_.note(entry->hash, {.at = now, .reason = Reason::kPurged});
    if (EntryPtr end = detach_locked(*entry)) ended.push_back(std::move(end));
  }
  states_.for_each([&](ReservationState& state) {
    if (state.entry->space == space) state.is_fenced = true;
  });
  counters_.erased += doomed.size();
  return doomed.size();
}

void Shard::make_evictable_locked(Entry& entry, Arrival arrival) noexcept {
  entry.used_at = uses_.fetch_add(1, std::memory_order_relaxed);
  policy_->insert(entry, arrival);
  announce_firsts_locked();
  if (!entry.has_seat) return;
  const QuotaId quota = quotas_.quota_of(entry.space);
  seats_.insert(quota, entry);
  announce_seat_locked(quota);
}

void Shard::make_unevictable_locked(Entry& entry) noexcept {
  policy_->remove(entry);
  announce_firsts_locked();
  if (!entry.has_seat) return;
  const QuotaId quota = quotas_.quota_of(entry.space);
  seats_.remove(quota, entry);
  announce_seat_locked(quota);
}

void Shard::announce_firsts_locked() noexcept {
  const FirstPlaces places = policy_->first_places();
  for (std::size_t line = 0; line < policy_->line_count(); ++line) {
    first_places_[line].store(places[line], std::memory_order_relaxed);
  }
}

void Shard::announce_seat_locked(QuotaId quota) noexcept {
  first_seats_[quota].store(seats_.first_place(quota), std::memory_order_relaxed);
}

// What leaves in one call.  Made before the lock is taken: the entries are freed after it.
struct Shard::Leaving {
  const Departure& why;
  std::uint64_t freed_bytes = 0;
  std::optional<std::uint64_t> last_hash = {};
  std::vector<EntryPtr> ended = {};
};

void Shard::evict_locked(Entry& entry, Leaving& leaving) {
  const std::uint64_t bytes = entry.pool_bytes();
  ++counters_.evictions;
  counters_.evicted_bytes += bytes;
  departures_.expect(entry.hash);  // noted one entry later: by then it is in the cache
  if (leaving.last_hash) departures_.note(*leaving.last_hash, leaving.why);
  leaving.last_hash = entry.hash;
  EntryPtr end = detach_locked(entry);
  if (end == nullptr) return;  // held: its bytes come with the hold's end
  leaving.freed_bytes += bytes;
  leaving.ended.push_back(std::move(end));
}

std::uint64_t Shard::evict(std::uint64_t bytes, std::size_t line, std::uint64_t place_max,
                           const Departure& why) {
  Leaving leaving{.why = why};
  const MutexLock lock(mutex_);
  while (leaving.freed_bytes < bytes) {
    Entry* first = policy_->first(line);
    if (first == nullptr || policy_->place(*first) > place_max) break;
    evict_locked(*first, leaving);
  }
  if (leaving.last_hash) departures_.note(*leaving.last_hash, why);
  if (!leaving.last_hash) announce_firsts_locked();  // the caller came for one that has moved
  return leaving.freed_bytes;
}

std::uint64_t Shard::evict_of(QuotaId quota, std::uint64_t bytes, std::uint64_t place_max,
                              const Departure& why) {
  Leaving leaving{.why = why};
  const MutexLock lock(mutex_);
  while (leaving.freed_bytes < bytes) {
    Entry* first = seats_.first(quota);
    if (first == nullptr || Seats::place(*first) > place_max) break;
    quotas_.count_evicted(quota, first->pool_bytes());
    evict_locked(*first, leaving);
  }
  if (leaving.last_hash) departures_.note(*leaving.last_hash, why);
  return leaving.freed_bytes;
}

std::size_t Shard::key_count(NamespaceId space) const noexcept {
  const MutexLock lock(mutex_);
  return space < space_counts_.size() ? space_counts_[space].keys : 0;
}

void Shard::add_space_counts(std::vector<SpaceCounts>& sum) const {
  const MutexLock lock(mutex_);
  for (std::size_t space = 0; space < std::min(space_counts_.size(), sum.size()); ++space) {
    sum[space].keys += space_counts_[space].keys;
    sum[space].bytes += space_counts_[space].bytes;
    sum[space].hits += space_counts_[space].hits;
    sum[space].misses += space_counts_[space].misses;
  }
}

KeyStory Shard::story(const KeyRef& ref) const noexcept {
  const MutexLock lock(mutex_);
  KeyStory story;
  story.forgotten_at = departures_.forgotten_at();
  if (sealed_.find(ref) != nullptr) {
    story.state = KeyStory::State::kPresent;
  } else if (written_.find(ref) != nullptr) {
    story.state = KeyStory::State::kWritten;
  } else if (const auto departure = departures_.find(ref.hash)) {
    story.state = KeyStory::State::kLeft;
    story.departure = *departure;
  }
  return story;
}

void Shard::add_counters_locked(StoreCounters& sum) const noexcept {
  sum.reserved_bytes += counters_.reserved_bytes;
  sum.quarantined_bytes += counters_.quarantined_bytes;
  sum.sealed_bytes += counters_.sealed_bytes;
  sum.keys += sealed_.size();
  sum.staged_values += counters_.staged_values;
  sum.pins += counters_.pins;
  sum.hits += counters_.hits;
  sum.misses += counters_.misses;
  sum.misses_new += counters_.misses_new;
  sum.misses_evicted += counters_.misses_evicted;
  sum.misses_erased += counters_.misses_erased;
  sum.seals += counters_.seals;
  sum.exists += counters_.exists;
  sum.evictions += counters_.evictions;
  sum.evicted_bytes += counters_.evicted_bytes;
  sum.erased += counters_.erased;
  sum.aborted += counters_.aborted;
  sum.refused += counters_.refused;
  sum.corrupt += counters_.corrupt;
}

}  // namespace infinistore
