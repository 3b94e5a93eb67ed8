#include "core/store/past/hit_curve.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/base/limits.h"

namespace infinistore {
namespace {

constexpr std::size_t kSlots = 2 * kSampledKeysMax;
constexpr std::size_t kRow = 32;          // slots
constexpr std::size_t kBand = 32 * kRow;  // slots
static_assert(kSlots % kBand == 0);
// What was sampled so long ago counts half: a curve is of the workload as it is now.
constexpr double kAsksHalved = 1 << 18;

}  // namespace

HitCurve::HitCurve(std::uint64_t pool_bytes)
    : bytes_max_(pool_bytes * kCurvePoolsMax),
      table_(kSampledKeysMax),
      slots_(kSlots),
      slot_bytes_(kSlots),
      row_bytes_(kSlots / kRow),
      band_bytes_(kSlots / kBand) {}

double HitCurve::rate_locked() const noexcept {
  return static_cast<double>(threshold_.load(std::memory_order_relaxed)) / (1u << kPlaceBits);
}

double HitCurve::ask(std::uint64_t hash, std::uint64_t bytes, double least_bytes) {
  if (!mutex_.try_lock()) {
    passed_over_.fetch_add(1, std::memory_order_relaxed);
    return least_bytes;
  }
  // Not if the threshold has fallen meanwhile.
  const double needed = samples(hash) ? ask_locked(hash, bytes, least_bytes) : least_bytes;
  mutex_.unlock();
  return needed;
}

void HitCurve::write(std::uint64_t hash, std::uint64_t bytes) {
  if (!mutex_.try_lock()) return;
  if (samples(hash)) {
    if (bytes != 0) last_bytes_ = bytes;
    use_locked(hash, bytes);
    trim_locked();
  }
  mutex_.unlock();
}

double HitCurve::ask_locked(std::uint64_t hash, std::uint64_t bytes, double least_bytes) {
  const double needed = std::max(use_locked(hash, bytes), least_bytes);
  sampled_asks_ += 1;
  if (needed < static_cast<double>(bytes_max_)) distances_[bucket_of(needed)] += 1;
  if (sampled_asks_ > kAsksHalved) {
    settle_locked();
    scale_locked(0.5);
  }
  trim_locked();
  return needed;
}

void HitCurve::expect(std::span<const KeyRef> refs) const noexcept {
  if (!mutex_.try_lock()) return;
  for (const KeyRef& ref : refs) {
    if (samples(ref.hash)) table_.expect(ref.hash);
  }
  for (const KeyRef& ref : refs) {
    if (!samples(ref.hash)) continue;
    const std::uint32_t slot = table_.first(ref.hash);
    if (slot == table_.kNone) continue;
    __builtin_prefetch(&slots_[slot], 1);
    __builtin_prefetch(&slot_bytes_[slot], 1);
  }
  mutex_.unlock();
}

double HitCurve::use_locked(std::uint64_t hash, std::uint64_t bytes) {
  const std::uint32_t slot = table_.find(slots_, hash);
  double needed = kNever;
  if (slot == table_.kNone) {
    if (bytes == 0) bytes = last_bytes_;
  } else {
    if (bytes == 0) bytes = slot_bytes_[slot];
    needed =
        static_cast<double>(bytes_behind_locked(slot)) / rate_locked() + static_cast<double>(bytes);
    leave_slot_locked(slot);
  }
  take_slot_locked(hash, bytes);
  return needed;
}

std::uint64_t HitCurve::asked() const noexcept {
  std::uint64_t sum = 0;
  for (const Asked& each : asked_) sum += each.keys.load(std::memory_order_relaxed);
  return sum;
}

std::uint64_t HitCurve::bytes_behind_locked(std::uint32_t slot) const noexcept {
  const auto sum = [](const std::vector<std::uint64_t>& of, std::size_t begin, std::size_t end) {
    const auto run = std::span(of).subspan(begin, end - begin);
    return std::accumulate(run.begin(), run.end(), std::uint64_t{0});
  };
  const std::size_t row = slot / kRow;
  const std::size_t band = slot / kBand;
  return sum(slot_bytes_, slot + 1, (row + 1) * kRow) +
         sum(row_bytes_, row + 1, (band + 1) * (kBand / kRow)) +
         sum(band_bytes_, band + 1, band_bytes_.size());
}

void HitCurve::leave_slot_locked(std::uint32_t slot) noexcept {
  table_.unlink(slots_, slot);
  const std::uint64_t bytes = std::exchange(slot_bytes_[slot], 0);
  row_bytes_[slot / kRow] -= bytes;
  band_bytes_[slot / kBand] -= bytes;
  tracked_bytes_ -= bytes;
  --tracked_;
}

void HitCurve::take_slot_locked(std::uint64_t hash, std::uint64_t bytes) {
  if (next_slot_ == slots_.size()) close_ranks_locked();
  const std::uint32_t slot = next_slot_++;
  slots_[slot].hash = hash;
  table_.link(slots_, slot);
  slot_bytes_[slot] = bytes;
  row_bytes_[slot / kRow] += bytes;
  band_bytes_[slot / kBand] += bytes;
  tracked_bytes_ += bytes;
  ++tracked_;
}

// Moves all to the front, in their order.
void HitCurve::close_ranks_locked() {
  const std::size_t end = std::exchange(next_slot_, 0);
  table_.clear();
  std::ranges::fill(row_bytes_, 0);
  std::ranges::fill(band_bytes_, 0);
  first_slot_ = 0;
  tracked_ = 0;
  tracked_bytes_ = 0;
  for (std::size_t slot = 0; slot < end; ++slot) {
    const std::uint64_t bytes = std::exchange(slot_bytes_[slot], 0);
    if (bytes != 0) take_slot_locked(slots_[slot].hash, bytes);
  }
}

// Keeps the sample within its bounds: so many keys, and none that only a larger pool than any of
// the curve would still have.
void HitCurve::trim_locked() {
  while (tracked_ > kSampledKeysMax && threshold_.load(std::memory_order_relaxed) > 1) {
    lower_threshold_locked();
  }
  const double room = static_cast<double>(bytes_max_) * rate_locked();
  while (static_cast<double>(tracked_bytes_) > room && tracked_ > 1) {
    if (slot_bytes_[first_slot_] != 0) leave_slot_locked(first_slot_);
    ++first_slot_;
  }
}

void HitCurve::lower_threshold_locked() {
  settle_locked();
  const std::uint32_t before = threshold_.load(std::memory_order_relaxed);
  const std::uint32_t after = before - std::max(before / 8, 1u);
  threshold_.store(after, std::memory_order_relaxed);
  scale_locked(static_cast<double>(after) / before);
  for (std::uint32_t slot = first_slot_; slot < next_slot_; ++slot) {
    if (slot_bytes_[slot] != 0 && !samples(slots_[slot].hash)) leave_slot_locked(slot);
  }
}

void HitCurve::settle_locked() noexcept {
  const std::uint64_t all = asked();
  expected_asks_ += static_cast<double>(all - settled_asked_) * rate_locked() -
                    static_cast<double>(passed_over_.exchange(0, std::memory_order_relaxed));
  settled_asked_ = all;
}

void HitCurve::scale_locked(double by) noexcept {
  for (double& count : distances_) count *= by;
  sampled_asks_ *= by;
  expected_asks_ *= by;
}

std::size_t HitCurve::bucket_of(double bytes) noexcept {
  const double at = std::log2(std::max(bytes, 1.0)) * kBucketsPerDoubling;
  return std::min(static_cast<std::size_t>(at), 64 * kBucketsPerDoubling - 1);
}

double HitCurve::bucket_end(std::size_t bucket) noexcept {
  return std::exp2(static_cast<double>(bucket + 1) / kBucketsPerDoubling);
}

// The sample has more or fewer asks than its share of all, as it has or lacks a few keys that are
// asked for again and again: the difference is counted as asks that any pool answers.
HitCurve::Picture HitCurve::picture(std::span<const std::uint64_t> pool_bytes) const {
  const MutexLock lock(mutex_);
  const double rate = rate_locked();
  const auto unsettled = static_cast<double>(asked() - settled_asked_);
  const double asks = expected_asks_ + unsettled * rate -
                      static_cast<double>(passed_over_.load(std::memory_order_relaxed));
  Picture picture{
      .asked = asks / rate, .sampled_share = rate, .bytes_max = bytes_max_, .hit_rates = {}};
  for (const std::uint64_t bytes : pool_bytes) {
    double hits = asks - sampled_asks_;
    double begin = 0;
    for (std::size_t bucket = 0; bucket < distances_.size() && begin < static_cast<double>(bytes);
         ++bucket) {
      const double end = bucket_end(bucket);
      const double part = std::min(1.0, (static_cast<double>(bytes) - begin) / (end - begin));
      hits += distances_[bucket] * part;
      begin = end;
    }
    picture.hit_rates.push_back(asks > 0 ? std::clamp(hits / asks, 0.0, 1.0) : 0.0);
  }
  return picture;
}

}  // namespace infinistore
