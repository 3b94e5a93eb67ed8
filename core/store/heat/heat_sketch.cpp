#include "core/store/heat/heat_sketch.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/base/check.h"

namespace infinistore {
namespace {

// A byte's weight is below 2^kDoublingsMax: far from what a double cannot hold.
constexpr double kDoublingsMax = 500;

}  // namespace

HeatSketch::HeatSketch(std::size_t keys_max, Nanos half_life)
    : keys_max_(keys_max), half_life_(static_cast<double>(half_life)), table_(2 * keys_max) {
  KV_CHECK(keys_max > 0 && keys_max < table_.kNone && half_life > 0);
  counters_.reserve(keys_max);
  heap_.reserve(keys_max);
}

double HeatSketch::growth(Nanos now) const noexcept {
  return std::exp2(static_cast<double>(now - landmark_) / half_life_);
}

// What is served at a steady rate adds up to rate * half-life / ln 2.
double HeatSketch::rate_of(double weight, Nanos now) const noexcept {
  constexpr auto kNanos = static_cast<double>(kSecond);
  return weight / growth(now) * std::numbers::ln2 * kNanos / half_life_;
}

void HeatSketch::move_landmark(Nanos now) noexcept {
  const double shrink = 1 / growth(now);
  for (auto& counter : counters_) {
    counter.weight *= shrink;
    counter.error *= shrink;
  }
  for (auto& cold : heap_) cold.weight *= shrink;
  total_ *= shrink;
  landmark_ = added_at_ = now;
  added_growth_ = 1;
}

void HeatSketch::expect(std::span<const std::uint64_t> hashes) const noexcept {
  for (const std::uint64_t hash : hashes) table_.expect(hash);
  for (const std::uint64_t hash : hashes) {
    const auto first = table_.first(hash);
    if (first != table_.kNone) __builtin_prefetch(&counters_[first], 1);
  }
}

void HeatSketch::add(std::uint64_t hash, std::uint64_t bytes, Nanos now) noexcept {
  if (static_cast<double>(now - landmark_) > kDoublingsMax * half_life_) move_landmark(now);
  if (now != std::exchange(added_at_, now)) added_growth_ = growth(now);  // a batch's keys share it
  const double weight = static_cast<double>(bytes) * added_growth_;
  total_ += weight;
  if (const auto found = table_.find(counters_, hash); found != table_.kNone) {
    counters_[found].weight += weight;
    return;
  }
  if (counters_.size() < keys_max_) {
    counters_.push_back({.hash = hash, .weight = weight});
    table_.link(counters_, static_cast<std::uint32_t>(counters_.size() - 1));
    return;
  }
  const auto taken = coldest();
  table_.unlink(counters_, taken);
  auto& counter = counters_[taken];
  counter.hash = hash;
  counter.error = counter.weight;
  counter.weight += weight;
  table_.link(counters_, taken);
}

double HeatSketch::rate(std::uint64_t hash, Nanos now) const noexcept {
  const auto found = table_.find(counters_, hash);
  if (found == table_.kNone) return 0;
  return rate_of(counters_[found].weight - counters_[found].error, now);
}

double HeatSketch::total_rate(Nanos now) const noexcept { return rate_of(total_, now); }

double HeatSketch::error_max(Nanos now) const noexcept {
  if (counters_.size() < keys_max_) return 0;
  double least = counters_.front().weight;
  for (const auto& counter : counters_) least = std::min(least, counter.weight);
  return rate_of(least, now);
}

std::vector<HeatSketch::Hot> HeatSketch::all(Nanos now) const {
  std::vector<Hot> found;
  found.reserve(counters_.size());
  const double rate = rate_of(1, now);
  for (const auto& counter : counters_) {
    const double weight = counter.weight - counter.error;
    found.push_back({.hash = counter.hash, .bytes_per_s = weight * rate});
  }
  return found;
}

// What the heap's first has gained since it was looked at is put right until nothing is to be put:
// every hit is paid for once at most.
std::uint32_t HeatSketch::coldest() noexcept {
  const auto is_later = [](const Cold& a, const Cold& b) { return a.weight > b.weight; };
  if (heap_.empty()) {
    for (std::uint32_t i = 0; i < counters_.size(); ++i) {
      heap_.push_back({.weight = counters_[i].weight, .counter = i});
    }
    std::ranges::make_heap(heap_, is_later);
  }
  while (heap_.front().weight < counters_[heap_.front().counter].weight) {
    heap_.front().weight = counters_[heap_.front().counter].weight;
    sift_down();
  }
  return heap_.front().counter;
}

void HeatSketch::sift_down() noexcept {
  const Cold moved = heap_.front();
  std::size_t at = 0;
  for (std::size_t child = 1; child < heap_.size(); child = 2 * at + 1) {
    if (child + 1 < heap_.size() && heap_[child + 1].weight < heap_[child].weight) ++child;
    if (moved.weight <= heap_[child].weight) break;
    heap_[at] = heap_[child];
    at = child;
  }
  heap_[at] = moved;
}

}  // namespace infinistore
