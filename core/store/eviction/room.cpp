// Store: how it makes room, in the pool and within a quota.
#include <algorithm>
#include <span>

#include "core/store/store_impl.h"

namespace infinistore {
namespace {

// What a reserve() populates at once while the pool is still being populated: some 30 ms.
constexpr std::uint64_t kPopulateStepBytes = std::uint64_t{64} << 20;

// Room is made for more than one value at a time, of so much at most and this part of the pool: all
// threads would else come for every value to the same shard, and wait for each other.  What is left
// free also keeps values in fewer extents.
constexpr std::uint64_t kEvictAtOnceBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kEvictAtOnceShare = 512;

std::uint64_t evict_at_once(std::uint64_t whole_bytes) noexcept {
  return std::min(kEvictAtOnceBytes, whole_bytes / kEvictAtOnceShare);
}

struct First {
  Shard* shard = nullptr;                   // the one with the first place; null: none has any
  std::uint64_t next_place = kNoPlace - 1;  // the first one of another
};

template <class PlaceIn>
First first_of(std::span<const std::unique_ptr<Shard>> shards, PlaceIn place_in) {
  First first;
  std::uint64_t first_place = kNoPlace;
  for (const auto& shard : shards) {
    const std::uint64_t place = place_in(*shard);
    first.next_place = std::min(first.next_place, std::max(place, first_place));
    if (place >= first_place) continue;
    first_place = place;
    first.shard = shard.get();
  }
  return first;
}

}  // namespace

bool Store::may_fit(const Intent& intent) const noexcept {
  const Quotas& quotas = impl_->quotas;
  const QuotaId quota = quotas.quota_of(intent.space);
  return intent.value_bytes <= impl_->pool.capacity_bytes() &&
         (quota == kNoQuota || whole_pages(intent.value_bytes) <= quotas.bytes_max(quota));
}

bool Store::make_room(Code lack, const Intent& intent) {
  if (lack == Code::kOutOfMemory) return make_room_in_pool(intent.value_bytes, intent.space);
  if (lack == Code::kQuotaExceeded) return make_room_in_quota(intent.value_bytes, intent.space);
  return false;
}

bool Store::make_room_in_quota(std::uint64_t value_bytes, NamespaceId space) {
  const Quotas& quotas = impl_->quotas;
  const QuotaId quota = quotas.quota_of(space);
  const std::uint64_t bytes = whole_pages(value_bytes);
  const MutexLock lock(impl_->room_mutex);
  const std::uint64_t excess = quotas.excess_bytes(quota, bytes);
  if (excess == 0) return true;  // another made room meanwhile
  const Departure why{.at = now(), .reason = Reason::kQuota};
  return evict_of(quota, std::max(excess, evict_at_once(quotas.bytes_max(quota))), why) > 0 ||
         quotas.excess_bytes(quota, bytes) == 0;
}

bool Store::make_room_in_pool(std::uint64_t value_bytes, NamespaceId pressing) {
  Pool& pool = impl_->pool;
  const std::uint64_t bytes = whole_pages(value_bytes);
  const std::uint64_t available = pool.available_bytes();
  if (available < bytes && !pool.is_populated()) {
    // Evicting for want of pages that nobody has populated yet would be a loss.
    const std::uint64_t missing = bytes - available;
    const bool has_more = pool.populate_some(std::min(missing, kPopulateStepBytes));
    // Whoever has the last part of it under way will soon be done.
    if (has_more || pool.await_populating() || pool.is_populated()) return true;
  }
  // If so much is free and yet was not enough, it is scattered over too many extents.
  const std::uint64_t needed = available < bytes ? bytes - available : bytes;
  const MutexLock lock(impl_->room_mutex);
  if (pool.available_bytes() > available) return true;  // another made room meanwhile
  const std::uint64_t at_once = evict_at_once(pool.capacity_bytes());
  const Departure why{.at = now(), .reason = Reason::kRoom, .pressing = pressing};
  return evict_for(std::max(needed, at_once), why) > 0 || pool.available_bytes() >= bytes;
}

std::uint64_t Store::evict(std::uint64_t bytes) {
  return evict_for(bytes, {.at = now(), .reason = Reason::kWatermark});
}

// Turns to the shard that has the first of the next line, until another's is before its own: the
// order of all shards together is that of one.  One lock at a time; what others do meanwhile blurs
// it a little.
std::uint64_t Store::evict_for(std::uint64_t bytes, const Departure& why) {
  std::uint64_t freed_bytes = 0;
  while (freed_bytes < bytes) {
    FirstPlaces firsts{};
    firsts.fill(kNoPlace);
    for (const auto& shard : impl_->shards) {
      for (std::size_t line = 0; line < firsts.size(); ++line) {
        firsts[line] = std::min(firsts[line], shard->first_place(line));
      }
    }
    if (std::ranges::all_of(firsts, [](auto place) { return place == kNoPlace; })) break;
    const std::size_t line =
        impl_->eviction->choose(firsts, impl_->uses.load(std::memory_order_relaxed));
    const auto [first, next_place] =
        first_of(impl_->shards, [line](const Shard& shard) { return shard.first_place(line); });
    if (first != nullptr) freed_bytes += first->evict(bytes - freed_bytes, line, next_place, why);
  }
  return freed_bytes;
}

// As evict_for(), with one line.
std::uint64_t Store::evict_of(QuotaId quota, std::uint64_t bytes, const Departure& why) {
  std::uint64_t freed_bytes = 0;
  while (freed_bytes < bytes) {
    const auto [first, next_place] =
        first_of(impl_->shards, [quota](const Shard& shard) { return shard.first_seat(quota); });
    if (first == nullptr) break;
    freed_bytes += first->evict_of(quota, bytes - freed_bytes, next_place, why);
  }
  return freed_bytes;
}

}  // namespace infinistore
