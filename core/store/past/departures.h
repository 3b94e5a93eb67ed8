#pragma once
// Departures: which keys left a shard not long ago, when and why.  Of a fixed size: the oldest of
// a bucket is forgotten for a new one.
//
// Not thread-safe: it is its shard's, under that lock.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "core/store/entry.h"

namespace infinistore {

// Why a key that was there is no longer.
enum class Reason : std::uint8_t { kRoom = 1, kWatermark, kQuota, kErased, kPurged, kCorrupt };

inline bool is_eviction(Reason reason) noexcept { return reason <= Reason::kQuota; }

struct Departure {
  Nanos at = 0;
  Reason reason = Reason::kErased;
  NamespaceId pressing = 0;  // kRoom: whose writer needed the room
};

class Departures {
 public:
  explicit Departures(std::size_t count_max);  // rounded up to a power of two

  void note(std::uint64_t hash, const Departure& departure) noexcept;
  std::optional<Departure> find(std::uint64_t hash) const noexcept;
  // The last departure that is forgotten; 0: none is.  What left after it is known.
  Nanos forgotten_at() const noexcept { return nanos_of(forgotten_at_); }

  void expect(std::uint64_t hash) const noexcept { __builtin_prefetch(&bucket_of(hash)); }

 private:
  // Times in units of 2^27 ns, which is 0.13 s: 18 years in 32 bits.
  static constexpr unsigned kTickShift = 27;
  static Nanos nanos_of(std::uint32_t ticks) noexcept {
    return static_cast<Nanos>(ticks) << kTickShift;
  }

  struct Record {
    std::uint64_t hash = 0;
    std::uint32_t ticks = 0;
    std::uint32_t pressing : 24 = 0;
    std::uint32_t reason : 8 = 0;  // 0: free
  };
  static constexpr std::size_t kWays = 4;
  struct alignas(64) Bucket {
    std::array<Record, kWays> records;
  };
  static_assert(sizeof(Bucket) == 64);  // one miss of the caches

  const Bucket& bucket_of(std::uint64_t hash) const noexcept {
    return buckets_[hash & (buckets_.size() - 1)];
  }

  std::vector<Bucket> buckets_;
  std::uint32_t forgotten_at_ = 0;
};

}  // namespace infinistore
