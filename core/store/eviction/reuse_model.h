#pragma once
// ReuseModel: what a store's own past says about when keys are used again.
//
// Keys are of two kinds: new ones, and ones that were used before.  For each kind and each age (how
// many uses of the store ago the last use was) the model counts, over a sample of the keys, how
// many were waiting at that age and how many were used.  These hazards give the worth of keeping an
// entry: the most hits for each use of the store that it occupies its place, over all times to give
// up on it (its Gittins index; "hit density" in Beckmann et al., LHD, NSDI 2018).

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/base/mutex.h"
#include "core/store/eviction/reuse_tuning.h"

namespace infinistore {

enum class Kind : std::uint8_t { kNew = 0, kReturning = 1 };
inline constexpr std::size_t kKinds = 2;

class ReuseModel {
 public:
  explicit ReuseModel(const ReuseTuning& tuning = {});

  // A key that is of this kind from now on was used.
  void used(std::uint64_t hash, Kind kind, std::uint64_t now) noexcept {
    if (is_sampled(hash)) used_sampled(hash, kind, now);
  }

  // On a logarithmic scale of 2^16 steps.
  std::uint16_t worth(Kind kind, std::uint64_t age) const noexcept {
    return worth_[static_cast<std::size_t>(kind)][age_class(age)].load(std::memory_order_relaxed);
  }

  // Epochs should be so many uses long, and the sample should tell of as many: a larger store
  // samples fewer keys.
  void remember(std::uint64_t use_count) noexcept;

  // The same for all shards at once.
  std::uint64_t epoch(std::uint64_t now) noexcept {
    std::uint64_t end = epoch_end_.load(std::memory_order_relaxed);
    if (now >= end && epoch_end_.compare_exchange_strong(end, now + epoch_uses_.load())) ++epoch_;
    return epoch_.load(std::memory_order_relaxed);
  }

  // Four classes an octave, from an age of 256 on; linear below.
  static constexpr std::size_t kAges = 96;
  static constexpr std::size_t age_class(std::uint64_t age) noexcept {
    const std::uint64_t shifted = age + kAgeUnit;
    const std::size_t octave = static_cast<unsigned>(std::bit_width(shifted)) - kAgeUnitBits - 1;
    const std::size_t quarter = shifted >> (octave + kAgeUnitBits - 2) & 3;
    return octave * 4 + quarter < kAges ? octave * 4 + quarter : kAges - 1;
  }
  static constexpr std::uint64_t age_of(std::size_t age_class) noexcept {  // where it begins
    return ((4 + age_class % 4) << (age_class / 4 + kAgeUnitBits - 2)) - kAgeUnit;
  }

 private:
  static constexpr unsigned kAgeUnitBits = 8;
  static constexpr std::uint64_t kAgeUnit = 1 << kAgeUnitBits;
  static constexpr std::size_t kSets = 2048;
  static constexpr std::size_t kWays = 8;
  using Hazards = std::array<double, kAges>;
  using Counts = std::array<Hazards, kKinds>;

  struct Waiting {
    std::uint64_t hash = 0;
    std::uint64_t since : 63 = 0;
    std::uint64_t kind : 1 = 0;
  };

  // High bits of a product: the low bits choose a place in an index, the highest a shard.
  static std::uint64_t mixed(std::uint64_t hash) noexcept { return hash * 0x9E3779B97F4A7C15ULL; }
  bool is_sampled(std::uint64_t hash) const noexcept {
    return (mixed(hash) >> 32 & sample_mask_.load(std::memory_order_relaxed)) == 0 && hash != 0;
  }
  void used_sampled(std::uint64_t hash, Kind kind, std::uint64_t now) noexcept EXCLUDES(mutex_);
  Waiting& place_of(std::uint64_t hash) noexcept REQUIRES(mutex_);
  void learn_locked(std::uint64_t now) noexcept REQUIRES(mutex_);
  void set_worth(Kind kind, const Hazards& hazards) noexcept;

  const ReuseTuning tuning_;
  std::atomic<std::uint64_t> sample_mask_;
  std::atomic<std::uint64_t> epoch_uses_{0};
  std::atomic<std::uint64_t> epoch_end_{0};
  std::atomic<std::uint64_t> epoch_{0};
  std::array<std::array<std::atomic<std::uint16_t>, kAges>, kKinds> worth_{};

  Mutex mutex_;
  std::vector<Waiting> table_ GUARDED_BY(mutex_);  // kSets of kWays: the sampled keys' last uses
  Counts waited_ GUARDED_BY(mutex_){};             // past waits that reached an age
  Counts hits_ GUARDED_BY(mutex_){};               // and those that ended there
  std::array<double, kKinds> scale_ GUARDED_BY(mutex_){1, 1};  // of a kind's hazards, to all keys'
  std::uint64_t sample_count_ GUARDED_BY(mutex_) = 0;
  std::uint64_t unlearned_ GUARDED_BY(mutex_) = 0;  // samples since learn_locked()
};

}  // namespace infinistore
