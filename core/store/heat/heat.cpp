#include "core/store/heat/heat.h"

#include <algorithm>
#include <array>
#include <bit>

#include "core/base/limits.h"
#include "core/store/store_impl.h"

namespace infinistore {
namespace {

// Fewer bytes count as so many, as often as makes up for it: 4 KiB every 16th time.
constexpr std::uint64_t kSampleBytes = std::uint64_t{64} << 10;

// Of a batch, under the lock: some microseconds.
constexpr std::size_t kServedAtOnce = 64;

// Of an index, looked at under its shard's lock: some microseconds.
constexpr std::size_t kGroupsAtOnce = 16;
constexpr std::size_t kKeysOfGroup = 7;
// Of one page, so that a page of empty tables ends too.
constexpr std::size_t kGroupsMax = 16384;

// The finaliser of MurmurHash3 (Appleby, 2011).
std::uint64_t mixed(std::uint64_t bits) noexcept {
  bits = (bits ^ bits >> 33) * 0xFF51AFD7ED558CCDULL;
  bits = (bits ^ bits >> 33) * 0xC4CEB9FE1A85EC53ULL;
  return bits ^ bits >> 33;
}

// A walk's place as one number: 8 bits of the shard, 6 of the table's size, 50 of the slot.
constexpr unsigned kSlotBits = 50;
constexpr unsigned kTableBits = 6;

struct Cursor {
  std::size_t shard = 0;
  Index::Place place;

  static Cursor of(std::uint64_t number) noexcept {
    const auto width = number >> kSlotBits & ((1U << kTableBits) - 1);
    return {.shard = number >> (kSlotBits + kTableBits),
            .place = {.table = width == 0 ? 0 : std::size_t{1} << (width - 1),
                      .slot = number & ((std::uint64_t{1} << kSlotBits) - 1)}};
  }
  std::uint64_t number() const noexcept {
    const auto width = static_cast<std::uint64_t>(std::bit_width(place.table));
    return std::uint64_t{shard} << (kSlotBits + kTableBits) | width << kSlotBits | place.slot;
  }
};

// An entry as it was under its shard's lock.
struct Seen {
  NamespaceId space = 0;
  std::uint64_t hash = 0;
  std::uint64_t value_bytes = 0;
  std::string key;

  explicit Seen(const Entry& entry)
      : space(entry.space), hash(entry.hash), value_bytes(entry.value_bytes), key(entry.key()) {}
};

Heat::Key shown(const Store& store, Seen&& seen) {
  return {.space = store.space_name(seen.space),
          .key = std::move(seen.key),
          .value_bytes = seen.value_bytes};
}

}  // namespace

Heat::Heat(Store& store, const Clock& clock, Nanos half_life)
    : store_(store), clock_(clock), sketch_(kHeatKeysMax, half_life) {}

void Heat::served(std::span<const Lease> leases, std::span<const std::uint64_t> bytes,
                  Nanos now) noexcept {
  // Not zeroed: they are read as far as they are filled, and most calls are of few keys.
  std::array<std::uint64_t, kServedAtOnce> hashes;
  std::array<std::uint64_t, kServedAtOnce> counts;
  for (std::size_t i = 0; i < leases.size();) {
    std::size_t taken = 0;
    for (; i < leases.size() && taken < kServedAtOnce; ++i) {
      const std::uint64_t hash = leases[i].entry_->hash;
      // The nanoseconds are random enough, and a key's hash has a seed.
      if (bytes[i] < kSampleBytes &&
          mixed(static_cast<std::uint64_t>(now) ^ hash) % kSampleBytes >= bytes[i]) {
        continue;
      }
      hashes[taken] = hash;
      counts[taken++] = std::max(bytes[i], kSampleBytes);
    }
    const MutexLock lock(mutex_);
    sketch_.expect(std::span(hashes).first(taken));
    for (std::size_t k = 0; k < taken; ++k) sketch_.add(hashes[k], counts[k], now);
  }
}

double Heat::total_rate() const noexcept {
  const Nanos now = clock_.now();
  const MutexLock lock(mutex_);
  return sketch_.total_rate(now);
}

std::vector<Heat::Key> Heat::hottest(std::size_t count_max) const {
  const Nanos now = clock_.now();
  std::vector<HeatSketch::Hot> all;
  {
    const MutexLock lock(mutex_);
    all = sketch_.all(now);
  }
  std::ranges::sort(all,
                    [](const auto& a, const auto& b) { return a.bytes_per_s > b.bytes_per_s; });
  std::vector<Key> keys;
  keys.reserve(std::min(count_max, all.size()));
  for (const auto& hot : all) {
    if (keys.size() >= count_max || hot.bytes_per_s <= 0) break;
    std::optional<Seen> seen;
    store_.shard_of(hot.hash).look_at(hot.hash, [&seen](const Entry& entry) {
      if (!entry.is_replaced) seen.emplace(entry);
    });
    if (!seen) continue;
    keys.push_back(shown(store_, std::move(*seen)));
    keys.back().bytes_per_s = hot.bytes_per_s;
  }
  return keys;
}

Heat::Page Heat::list_keys(std::uint64_t cursor, std::size_t count_max) const {
  const auto& shards = store_.impl_->shards;
  auto at = Cursor::of(cursor);
  std::vector<Seen> all;
  const auto look = [&all](const Entry& entry) { all.emplace_back(entry); };
  std::size_t groups = 0;
  while (at.shard < shards.size() && groups < kGroupsMax) {
    const std::size_t room = std::max(count_max, kKeysOfGroup) - all.size();
    const std::size_t at_once = std::min(kGroupsAtOnce, room / kKeysOfGroup);
    if (at_once == 0) break;
    groups += at_once;
    if (!shards[at.shard]->look_on(at.place, at_once, look))
      at = {.shard = at.shard + 1, .place = {}};
  }
  Page page;
  page.next = at.shard < shards.size() ? at.number() : 0;
  page.keys.reserve(all.size());
  for (auto& seen : all) page.keys.push_back(shown(store_, std::move(seen)));
  const Nanos now = clock_.now();
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < all.size(); ++i) {
    page.keys[i].bytes_per_s = sketch_.rate(all[i].hash, now);
  }
  return page;
}

}  // namespace infinistore
