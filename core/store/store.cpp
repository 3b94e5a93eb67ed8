#include "core/store/store.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/store/eviction/policies.h"
#include "core/store/store_impl.h"

namespace infinistore {
namespace {

// Others may take what was evicted for us; so often and no more do we evict again.
constexpr int kRoomAttemptsMax = 64;

// Bounds what is on the stack for a call of many keys.
constexpr std::size_t kShardsMax = 256;

std::size_t departures_max(const Pool& pool) {
  return std::clamp<std::size_t>(pool.capacity_bytes() / kDepartureBytesOfPool, kDeparturesMin,
                                 kDeparturesMax);
}

std::uint64_t staged_bytes_max(const StoreOptions& options, const Pool& pool) {
  if (options.staged_bytes_max != 0) return options.staged_bytes_max;
  return pool.capacity_bytes() / 100 * kStagedPercentMax;
}

}  // namespace

Store::Impl::Impl(Pool pool_given, StoreOptions options_given, const Clock& clock_given,
                  WriteEnd write_end)
    : pool(std::move(pool_given)),
      options(std::move(options_given)),
      clock(clock_given),
      on_write_end(std::move(write_end)),
      budget(staged_bytes_max(options, pool)),
      quotas(options.quotas),
      curve(pool.capacity_bytes()),
      eviction(make_eviction_scheme(options.eviction_policy, options.reuse_tuning)) {
  KV_CHECK(eviction != nullptr);
  KV_CHECK(options.shard_count > 0 && options.shard_count <= kShardsMax);
  for (std::uint32_t index = 0; index < options.shard_count; ++index) {
    shards.push_back(std::make_unique<Shard>(pool, budget, quotas, uses, eviction->make_policy(),
                                             departures_max(pool) / options.shard_count));
  }
}

Store::Impl::World::World(const Impl& impl) : impl_(impl) {
  for (const auto& shard : impl_.shards) shard->mutex().lock();
}

Store::Impl::World::~World() {
  for (const auto& shard : impl_.shards) shard->mutex().unlock();
}

Store::Store(Pool pool, StoreOptions options, const Clock& clock, WriteEnd on_write_end)
    : impl_(std::make_unique<Impl>(std::move(pool), std::move(options), clock,
                                   std::move(on_write_end))) {}
Store::~Store() = default;

Pool& Store::pool() noexcept { return impl_->pool; }

std::optional<NamespaceId> Store::intern(std::string_view space) {
  const MutexLock lock(impl_->names_mutex);
  const auto known = impl_->space_ids.find(std::string(space));
  if (known != impl_->space_ids.end()) return known->second;
  if (impl_->space_ids.size() >= kNamespacesMax) return std::nullopt;
  const auto next = static_cast<NamespaceId>(space.empty() ? 0 : impl_->space_names.size());
  if (!impl_->quotas.admit(next, space)) return std::nullopt;
  impl_->space_ids.emplace(space, next);
  if (next != 0) {
    impl_->space_names.emplace_back(space);
    impl_->space_uses.emplace_back();
  }
  return next;
}

SpaceUse& Store::use_of(NamespaceId space) {
  const MutexLock lock(impl_->names_mutex);
  return impl_->space_uses.at(space);
}

std::string Store::space_name(NamespaceId space) const {
  const MutexLock lock(impl_->names_mutex);
  return space < impl_->space_names.size() ? impl_->space_names[space] : std::string();
}

KeyRef Store::ref_of(NamespaceId space, std::string_view key) const noexcept {
  return {.space = space, .key = key, .hash = hash_in(space, key, impl_->options.hash_seed)};
}

std::size_t Store::shard_index_of(std::uint64_t hash) const noexcept {
  // The high bits: the index within the shard goes by the low ones.
  return (hash >> 32) * impl_->shards.size() >> 32;
}

Shard& Store::shard_of(std::uint64_t hash) const noexcept {
  return *impl_->shards[shard_index_of(hash)];
}

Result<Reservation> Store::reserve(const Intent& intent) {
  if (intent.key.empty() || intent.key.size() > kKeyBytesMax || intent.value_bytes == 0 ||
      intent.parent.size() > kKeyBytesMax) {
    return Code::kInvalid;
  }
  const KeyRef ref = ref_of(intent.space, intent.key);
  const std::uint64_t parent_hash =
      intent.parent.empty() ? 0 : ref_of(intent.space, intent.parent).hash;
  Shard& home = shard_of(ref.hash);
  if (impl_->curve.samples(ref.hash)) impl_->curve.write(ref.hash, whole_pages(intent.value_bytes));
  Code refusal = Code::kTooLarge;
  if (may_fit(intent)) {
    for (int attempt = 0; attempt < kRoomAttemptsMax; ++attempt) {
      auto state = home.reserve(ref, intent, parent_hash, impl_->clock.now());
      if (state) return Reservation(*this, std::move(*state));
      refusal = state.code();
      if (!make_room(refusal, intent)) break;
    }
  }
  if (refusal != Code::kExists) home.count_refused();
  return refusal;
}

// By shards, so that each is locked once.
void Store::expect(NamespaceId space, std::span<const std::string_view> keys,
                   Expect what) const noexcept {
  const std::size_t count = std::min(keys.size(), kExpectedKeysMax);
  const std::size_t shard_count = impl_->shards.size();
  std::array<KeyRef, kExpectedKeysMax> refs;
  std::array<std::uint16_t, kExpectedKeysMax> shard_of_key;
  std::array<std::uint16_t, kExpectedKeysMax> picks;
  std::array<std::uint16_t, kShardsMax + 1> ends{};
  for (std::size_t i = 0; i < count; ++i) {
    refs[i] = ref_of(space, keys[i]);
    shard_of_key[i] = static_cast<std::uint16_t>(shard_index_of(refs[i].hash));
    ++ends[shard_of_key[i] + std::size_t{1}];
  }
  for (std::size_t shard = 1; shard <= shard_count; ++shard) ends[shard] += ends[shard - 1];
  // From here on ends[shard] is where the next of its keys goes, at last where they end.
  for (std::size_t i = 0; i < count; ++i) {
    picks[ends[shard_of_key[i]]++] = static_cast<std::uint16_t>(i);
  }
  std::size_t begin = 0;
  for (std::size_t shard = 0; shard < shard_count; ++shard) {
    const std::size_t end = ends[shard];
    if (end == begin) continue;
    impl_->shards[shard]->expect(refs, std::span(picks).subspan(begin, end - begin), what);
    begin = end;
  }
  if (what != Expect::kExists) impl_->curve.expect(std::span(refs).first(count));
}

std::optional<Lease> Store::find(NamespaceId space, std::string_view key, bool counted) {
  const KeyRef ref = ref_of(space, key);
  Entry* entry = shard_of(ref.hash).pin(ref, counted);
  if (counted) {
    impl_->curve.count_asked(ref.hash, 1);
    if (impl_->curve.samples(ref.hash)) {
      impl_->curve.ask(ref.hash, entry == nullptr ? 0 : entry->pool_bytes());
    }
  }
  if (entry == nullptr) return std::nullopt;
  return Lease(*this, *entry);
}

std::optional<Lease> Store::find_quietly(NamespaceId space, std::string_view key) {
  const KeyRef ref = ref_of(space, key);
  Entry* entry = shard_of(ref.hash).hold(ref);
  if (entry == nullptr) return std::nullopt;
  return Lease(*this, *entry, true);
}

std::size_t Store::match_prefix(NamespaceId space, std::span<const std::string_view> keys,
                                std::size_t group, std::vector<Lease>* leases) {
  if (group == 0 || keys.empty()) return 0;
  std::vector<Lease> found;
  found.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i % kExpectedKeysMax == 0) expect(space, keys.subspan(i), Expect::kFind);
    const KeyRef ref = ref_of(space, keys[i]);
    Entry* entry = shard_of(ref.hash).pin(ref, false);
    if (entry == nullptr) break;
    found.push_back(Lease(*this, *entry));
  }
  const std::size_t blocks = found.size() / group;
  note_asked(space, keys, found);
  const std::size_t hits = blocks * group;
  if (hits > 0) shard_of(found.front().entry_->hash).count_hits(space, hits);
  if (found.size() < keys.size()) {
    const KeyRef first = ref_of(space, keys[found.size()]);
    shard_of(first.hash).count_misses(first, keys.size() - hits);
  }
  while (found.size() > blocks * group) found.pop_back();
  if (leases != nullptr) {
    std::ranges::move(found, std::back_inserter(*leases));
  } else {
    while (!found.empty()) found.pop_back();  // from the end: the policy sees the prefix last
  }
  return blocks;
}

void Store::note_asked(NamespaceId space, std::span<const std::string_view> keys,
                       std::span<const Lease> found) {
  HitCurve& curve = impl_->curve;
  curve.count_asked(found.empty() ? 0 : found.front().entry_->hash, keys.size());
  double least_bytes = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Entry* entry = i < found.size() ? found[i].entry_ : nullptr;
    const std::uint64_t hash = entry != nullptr ? entry->hash : ref_of(space, keys[i]).hash;
    if (!curve.samples(hash)) continue;
    least_bytes = curve.ask(hash, entry != nullptr ? entry->pool_bytes() : 0, least_bytes);
  }
}

bool Store::exists(NamespaceId space, std::string_view key) const {
  const KeyRef ref = ref_of(space, key);
  return shard_of(ref.hash).contains(ref);
}

bool Store::is_written(NamespaceId space, std::string_view key) const {
  const KeyRef ref = ref_of(space, key);
  return shard_of(ref.hash).is_written(ref);
}

bool Store::erase(NamespaceId space, std::string_view key) {
  const KeyRef ref = ref_of(space, key);
  return shard_of(ref.hash).erase(ref, now());
}

void Store::drop_corrupt(const Lease& lease) {
  shard_of(lease.entry_->hash).drop_corrupt(*lease.entry_, now());
}

std::size_t Store::purge(NamespaceId space) {
  std::size_t purged = 0;
  for (const auto& shard : impl_->shards) purged += shard->purge(space, now());
  return purged;
}

std::size_t Store::key_count(std::optional<NamespaceId> space) const {
  std::size_t count = 0;
  for (const auto& shard : impl_->shards) {
    if (space) {
      count += shard->key_count(*space);
    } else {
      const MutexLock lock(shard->mutex());
      count += shard->size_locked();
    }
  }
  return count;
}

void Store::write_ended(NamespaceId space, std::string_view key) const {
  if (impl_->on_write_end) impl_->on_write_end(space, key);
}

QuotaUse Store::quota_use(std::string_view owner) const noexcept {
  return impl_->quotas.use_of(owner);
}

Nanos Store::now() const noexcept { return impl_->clock.now(); }

}  // namespace infinistore
