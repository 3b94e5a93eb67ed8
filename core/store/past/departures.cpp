#include "core/store/past/departures.h"

#include <algorithm>
#include <bit>

#include "core/base/limits.h"

namespace infinistore {

static_assert(kNamespacesMax < 1u << 24);

Departures::Departures(std::size_t count_max)
    : buckets_(std::bit_ceil(std::max<std::size_t>(count_max / kWays, 1))) {}

void Departures::note(std::uint64_t hash, const Departure& departure) noexcept {
  auto& records = buckets_[hash & (buckets_.size() - 1)].records;
  Record* place = &records.front();
  for (Record& record : records) {
    if (record.reason == 0 || record.hash == hash) {
      place = &record;
      break;
    }
    if (record.ticks < place->ticks) place = &record;
  }
  if (place->reason != 0 && place->hash != hash) {
    forgotten_at_ = std::max(forgotten_at_, place->ticks);
  }
  place->hash = hash;
  place->ticks = static_cast<std::uint32_t>(departure.at >> kTickShift);
  place->pressing = departure.pressing & 0xFFFFFF;
  place->reason = static_cast<std::uint8_t>(departure.reason);
}

std::optional<Departure> Departures::find(std::uint64_t hash) const noexcept {
  for (const Record& record : bucket_of(hash).records) {
    if (record.reason == 0 || record.hash != hash) continue;
    return Departure{.at = nanos_of(record.ticks),
                     .reason = static_cast<Reason>(record.reason),
                     .pressing = record.pressing};
  }
  return std::nullopt;
}

}  // namespace infinistore
