#pragma once
// HeatSketch: of which keys most bytes were served lately, in bounded memory.
//
//   HeatSketch sketch(8192, 5 * kSecond);  sketch.add(hash, bytes, now);  sketch.all(now)
//
// Space-saving: a key that is not counted takes the coldest counter over, with what it had as its
// possible error (Metwally, Agrawal, El Abbadi: "Efficient computation of frequent and top-k
// elements in data streams", ICDT 2005).  Weights grow as time passes instead of counters decaying,
// so what is not served is not touched (Cormode, Shkapenyuk, Srivastava, Xu: "Forward decay", ICDE
// 2009).  Keys are their hashes.  Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/store/hash_table/hash_table.h"

namespace infinistore {

class HeatSketch {
 public:
  struct Hot {
    std::uint64_t hash = 0;
    double bytes_per_s = 0;  // at least; too low by error_max() at most
  };

  HeatSketch(std::size_t keys_max, Nanos half_life);

  void add(std::uint64_t hash, std::uint64_t bytes, Nanos now) noexcept;
  // Brings into the caches what add() of these will look at.
  void expect(std::span<const std::uint64_t> hashes) const noexcept;

  // What was served in a half-life counts twice as much as in the one before it.
  double rate(std::uint64_t hash, Nanos now) const noexcept;  // 0: not counted
  double total_rate(Nanos now) const noexcept;
  double error_max(Nanos now) const noexcept;  // not above total_rate() / keys_max
  std::vector<Hot> all(Nanos now) const;       // in no order
  std::size_t size() const noexcept { return counters_.size(); }

 private:
  struct Counter {
    std::uint64_t hash = 0;
    double weight = 0;       // in weights of landmark_
    double error = 0;        // of that, at most so much was served of other keys
    std::uint32_t next = 0;  // of its bucket in table_
  };
  // A counter's place in the heap goes by what it had when last looked at, which is not more than
  // what it has: so a hit touches its counter only.
  struct Cold {
    double weight = 0;
    std::uint32_t counter = 0;
  };

  double growth(Nanos now) const noexcept;
  double rate_of(double weight, Nanos now) const noexcept;
  void move_landmark(Nanos now) noexcept;
  std::uint32_t coldest() noexcept;
  void sift_down() noexcept;

  const std::size_t keys_max_;
  const double half_life_;  // in nanoseconds
  Nanos landmark_ = 0;      // when a byte weighs 1
  Nanos added_at_ = 0;      // last
  double added_growth_ = 1;
  double total_ = 0;
  std::vector<Counter> counters_;
  HashTable<Counter> table_;
  std::vector<Cold> heap_;  // the least first; empty until all counters are in use
};

}  // namespace infinistore
