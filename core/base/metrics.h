#pragma once
// Metrics: a histogram that threads add to without a lock, and its picture at one moment.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace infinistore {

// Counts values by their power of two: bucket i holds the values below 2^i and not below 2^(i-1).
class Log2Histogram {
 public:
  static constexpr std::size_t kBuckets = 40;

  // The counts so far.  Taken while others add, it may miss the newest, no more.
  struct Picture {
    std::array<std::uint64_t, kBuckets> counts{};
    std::uint64_t sum = 0;

    void add(const Picture& other) noexcept;
    std::uint64_t count() const noexcept;
    // How many values were below 2^exponent.
    std::uint64_t count_below(std::size_t exponent) const noexcept;
    // An upper bound of the value that `share` of all values do not exceed; 0 if there is none.
    std::uint64_t quantile(double share) const noexcept;
  };

  void record(std::uint64_t value) noexcept;
  Picture picture() const noexcept;

 private:
  std::array<std::atomic<std::uint64_t>, kBuckets> counts_{};
  std::atomic<std::uint64_t> sum_{0};
};

}  // namespace infinistore
