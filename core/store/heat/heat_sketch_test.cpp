#include "core/store/heat/heat_sketch.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <random>

namespace infinistore {
namespace {

constexpr double kClose = 1e-9;

// What a sketch of any size should say: every byte, decayed by itself.
class Exact {
 public:
  explicit Exact(Nanos half_life) : half_life_(static_cast<double>(half_life)) {}
  void add(std::uint64_t hash, std::uint64_t bytes, Nanos now) {
    auto& [sum, at] = sums_[hash];
    sum = sum * decay(now - at) + static_cast<double>(bytes);
    at = now;
  }
  double rate(std::uint64_t hash, Nanos now) const {
    const auto found = sums_.find(hash);
    if (found == sums_.end()) return 0;
    const double sum = found->second.first * decay(now - found->second.second);
    return sum * std::numbers::ln2 * static_cast<double>(kSecond) / half_life_;
  }
  double total_rate(Nanos now) const {
    double total = 0;
    for (const auto& [hash, sum] : sums_) total += rate(hash, now);
    return total;
  }
  const std::map<std::uint64_t, std::pair<double, Nanos>>& keys() const { return sums_; }

 private:
  double decay(Nanos age) const { return std::exp2(-static_cast<double>(age) / half_life_); }
  double half_life_;
  std::map<std::uint64_t, std::pair<double, Nanos>> sums_;
};

}  // namespace

TEST_CASE("with room for all keys a sketch is exact, while heat grows, halves and is forgotten") {
  constexpr Nanos kHalfLife = 2 * kSecond;
  HeatSketch sketch(101, kHalfLife);
  Exact exact(kHalfLife);
  std::mt19937_64 random(1);  // NOLINT: a fixed seed makes runs alike
  Nanos now = 5;
  for (int i = 0; i < 20'000; ++i) {
    const auto hash = random() % 100;
    const auto bytes = random() % 100'000;
    now += static_cast<Nanos>(random() % (200 * kMillisecond));
    if (i % 5'000 == 0) now += 600 * kHalfLife;  // beyond what weights may grow
    sketch.add(hash, bytes, now);
    exact.add(hash, bytes, now);
  }
  for (std::uint64_t hash = 0; hash < 100; ++hash) {
    CHECK(sketch.rate(hash, now) == doctest::Approx(exact.rate(hash, now)).epsilon(kClose));
  }
  CHECK(sketch.total_rate(now) == doctest::Approx(exact.total_rate(now)).epsilon(kClose));
  CHECK(sketch.error_max(now) == 0);
  const double before = sketch.rate(7, now);
  CHECK(sketch.rate(7, now + kHalfLife) == doctest::Approx(before / 2));
  CHECK(sketch.rate(7, now + 5'000 * kHalfLife) == 0);
}

TEST_CASE("a steady rate is what a sketch says, after some half-lives") {
  HeatSketch sketch(10, kSecond);
  Nanos now = 0;
  for (int i = 0; i < 1'000; ++i) sketch.add(1, 1'000, now += 10 * kMillisecond);
  CHECK(sketch.rate(1, now) == doctest::Approx(100'000).epsilon(0.01));
}

TEST_CASE("what many keys push out of a sketch is within its error, and its hottest are kept") {
  for (const std::size_t keys_max : {1, 2, 16, 256}) {
    CAPTURE(keys_max);
    HeatSketch sketch(keys_max, 3 * kSecond);
    Exact exact(3 * kSecond);
    std::mt19937_64 random(2);  // NOLINT: as above
    Nanos now = 0;
    for (int i = 0; i < 50'000; ++i) {
      // About Zipf(1) over 2^16 keys, which change their ranks half way.
      const auto rank = static_cast<std::uint64_t>(
          std::exp2(16 * static_cast<double>(random() % 1'000'000) / 1e6));
      const auto hash = (rank * 0x9E3779B97F4A7C15ULL) ^ (i < 25'000 ? 0 : 1);
      now += kMillisecond;
      sketch.add(hash, 4096, now);
      exact.add(hash, 4096, now);
    }
    const double total = exact.total_rate(now);
    const double error = sketch.error_max(now);
    CHECK(sketch.size() == keys_max);
    CHECK(sketch.total_rate(now) == doctest::Approx(total).epsilon(kClose));
    CHECK(error <= total / static_cast<double>(keys_max) * (1 + kClose));
    for (const auto& [hash, unused] : exact.keys()) {
      const double truth = exact.rate(hash, now);
      const double said = sketch.rate(hash, now);
      CHECK(said <= truth * (1 + kClose));
      CHECK(said >= truth - error - kClose * total);
    }
    double sum = 0;
    for (const auto& hot : sketch.all(now)) sum += hot.bytes_per_s;
    CHECK(sum <= total * (1 + kClose));
  }
}

TEST_CASE("a sketch never holds more keys than it was made for") {
  HeatSketch sketch(8, kSecond);
  for (std::uint64_t hash = 0; hash < 100'000; ++hash) {
    sketch.add(hash, 1 + hash % 7, static_cast<Nanos>(hash));
  }
  CHECK(sketch.size() == 8);
  CHECK(sketch.all(100'000).size() == 8);
}

}  // namespace infinistore
