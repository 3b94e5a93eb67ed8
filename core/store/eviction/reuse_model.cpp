#include "core/store/eviction/reuse_model.h"

#include <algorithm>
#include <cmath>

namespace infinistore {
namespace {

constexpr std::uint64_t kSampledMin = 8;  // one key in so many at least: the lock is shared

// Learning is often at first, and then every so many samples: it walks the table.
constexpr std::uint64_t kLearnEveryMin = 64;

double width_of(std::size_t age_class) {
  return static_cast<double>(ReuseModel::age_of(age_class + 1) - ReuseModel::age_of(age_class));
}

double prior_hazard(std::size_t age_class, double hits) {
  const double width = width_of(age_class);
  const double middle = static_cast<double>(ReuseModel::age_of(age_class)) + width / 2;
  return std::min(0.5, hits * width / (middle + 64));
}

std::uint16_t on_scale(double worth) {
  constexpr double kOctaves = 48;
  const double at = (std::log2(std::max(worth, 1e-15)) + kOctaves) / kOctaves;
  return static_cast<std::uint16_t>(std::clamp(at, 0.0, 1.0) * 65535);
}

}  // namespace

ReuseModel::ReuseModel(const ReuseTuning& tuning)
    : tuning_(tuning), sample_mask_(kSampledMin - 1), table_(kSets * kWays) {
  const MutexLock lock(mutex_);
  learn_locked(0);
}

void ReuseModel::remember(std::uint64_t use_count) noexcept {
  for (auto known = epoch_uses_.load(); known < use_count;) {
    if (epoch_uses_.compare_exchange_weak(known, use_count)) break;
  }
  const std::uint64_t one_in = std::bit_ceil(2 * use_count / (kSets * kWays) + 1);
  if (one_in - 1 <= sample_mask_.load(std::memory_order_relaxed)) return;
  const MutexLock lock(mutex_);
  sample_mask_.store(one_in - 1, std::memory_order_relaxed);
  for (Waiting& waiting : table_) {
    if (!is_sampled(waiting.hash)) waiting = {};
  }
}

void ReuseModel::used_sampled(std::uint64_t hash, Kind kind, std::uint64_t now) noexcept {
  const MutexLock lock(mutex_);
  Waiting& waiting = place_of(hash);
  if (waiting.hash != 0) {  // this key's wait ends by a use, or another's is given up
    const std::size_t age = age_class(now - std::min<std::uint64_t>(now, waiting.since));
    auto& waited = waited_[waiting.kind];
    for (std::size_t at = 0; at < age; ++at) ++waited[at];
    if (waiting.hash == hash) {
      ++waited[age];
      ++hits_[waiting.kind][age];
    }
  }
  waiting.hash = hash;
  waiting.since = now & (UINT64_MAX >> 1);
  waiting.kind = static_cast<std::uint64_t>(kind) & 1;
  ++sample_count_;
  const std::uint64_t learn_every_max = std::max(kLearnEveryMin, tuning_.learn_every_max);
  if (++unlearned_ >= std::clamp(sample_count_ / 16, kLearnEveryMin, learn_every_max)) {
    learn_locked(now);
  }
}

// Its own place, a free one, or that of the one that waits longest.
ReuseModel::Waiting& ReuseModel::place_of(std::uint64_t hash) noexcept {
  Waiting* const set = &table_[(mixed(hash) >> 48) % kSets * kWays];
  Waiting* oldest = set;
  for (Waiting* way = set; way < set + kWays; ++way) {
    if (way->hash == hash) return *way;
    const bool is_older =
        way->hash == 0 ? oldest->hash != 0 : oldest->hash != 0 && way->since < oldest->since;
    if (is_older) oldest = way;
  }
  return *oldest;
}

// Hazards are shrunk towards a coarser view where little is known: a kind's towards those of all
// keys at that age times one factor for the kind, and these towards the prior.
void ReuseModel::learn_locked(std::uint64_t now) noexcept {
  Counts waited = waited_;
  for (const Waiting& waiting : table_) {
    if (waiting.hash == 0) continue;
    const std::size_t age = age_class(now - std::min<std::uint64_t>(now, waiting.since));
    for (std::size_t at = 0; at < age; ++at) ++waited[waiting.kind][at];
  }
  Hazards all{};
  for (std::size_t at = 0; at < kAges; ++at) {
    double hits = tuning_.prior_of_ages * prior_hazard(at, tuning_.prior_hits);
    double waits = tuning_.prior_of_ages;
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      hits += hits_[kind][at];
      waits += waited[kind][at] * scale_[kind];
    }
    all[at] = std::min(0.9, hits / waits);
  }
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    double hits = tuning_.prior_of_scale;
    double expected = tuning_.prior_of_scale;
    for (std::size_t at = 0; at < kAges; ++at) {
      hits += hits_[kind][at];
      expected -= waited[kind][at] * std::log1p(-all[at]);
    }
    scale_[kind] = hits / expected;
    Hazards hazards{};
    for (std::size_t at = 0; at < kAges; ++at) {
      const double coarse = 1 - std::pow(1 - all[at], scale_[kind]);
      hazards[at] = (hits_[kind][at] + tuning_.prior_of_kind * coarse) /
                    (waited[kind][at] + tuning_.prior_of_kind);
    }
    set_worth(static_cast<Kind>(kind), hazards);
  }
  const double kept = std::exp2(-static_cast<double>(unlearned_) / tuning_.samples_halved);
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    for (double& count : waited_[kind]) count *= kept;
    for (double& count : hits_[kind]) count *= kept;
  }
  unlearned_ = 0;
}

void ReuseModel::set_worth(Kind kind, const Hazards& hazards) noexcept {
  for (std::size_t from = 0; from < kAges; ++from) {
    double alive = 1;
    double hits = 0;
    double time = 0;
    double best = 0;
    for (std::size_t at = from; at < kAges && alive > 1e-3; ++at) {
      hits += alive * hazards[at];
      time += alive * width_of(at) * (1 - hazards[at] / 2);
      alive *= 1 - hazards[at];
      best = std::max(best, hits / time);
    }
    worth_[static_cast<std::size_t>(kind)][from].store(on_scale(best), std::memory_order_relaxed);
  }
}

}  // namespace infinistore
