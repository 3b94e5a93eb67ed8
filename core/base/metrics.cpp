#include "core/base/metrics.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace infinistore {

void Log2Histogram::record(std::uint64_t value) noexcept {
  const auto bucket =
      std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(value)), kBuckets - 1);
  // Relaxed: each count stands alone, and nothing is ordered by it.
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

Log2Histogram::Picture Log2Histogram::picture() const noexcept {
  Picture picture;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    picture.counts[i] = counts_[i].load(std::memory_order_relaxed);
  }
  picture.sum = sum_.load(std::memory_order_relaxed);
  return picture;
}

void Log2Histogram::Picture::add(const Picture& other) noexcept {
  for (std::size_t i = 0; i < kBuckets; ++i) counts[i] += other.counts[i];
  sum += other.sum;
}

std::uint64_t Log2Histogram::Picture::count() const noexcept { return count_below(kBuckets); }

std::uint64_t Log2Histogram::Picture::count_below(std::size_t exponent) const noexcept {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < std::min(exponent + 1, kBuckets); ++i) total += counts[i];
  return total;
}

std::uint64_t Log2Histogram::Picture::quantile(double share) const noexcept {
  const auto all = count();
  if (all == 0) return 0;
  const auto wanted = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(all)));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < kBuckets; ++i) {
    seen += counts[i];
    if (seen >= wanted) return std::uint64_t{1} << i;
  }
  return std::uint64_t{1} << (kBuckets - 1);
}

}  // namespace infinistore
