#include "core/store/past/hit_curve.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <list>
#include <random>
#include <thread>
#include <unordered_map>

namespace infinistore {
namespace {

constexpr std::uint64_t kBytes = 4096;

// A use as the store makes it: asked for, then written; of 0 bytes: not written.
void use(HitCurve& curve, std::uint64_t hash, std::uint64_t bytes = kBytes) {
  curve.count_asked(hash, 1);
  if (!curve.samples(hash)) return;
  curve.ask(hash, 0);
  if (bytes > 0) curve.write(hash, bytes);
}

std::uint64_t mixed(std::uint64_t key) { return (key + 1) * 0x9E3779B97F4A7C15ULL; }

// Hits of an LRU pool of so many equal values.
class Lru {
 public:
  explicit Lru(std::size_t keys_max) : keys_max_(keys_max) {}
  void use(std::uint64_t key) {
    const auto at = places_.find(key);
    if (at != places_.end()) {
      ++hits_;
      order_.splice(order_.end(), order_, at->second);
      return;
    }
    order_.push_back(key);
    places_[key] = std::prev(order_.end());
    if (order_.size() > keys_max_) {
      places_.erase(order_.front());
      order_.pop_front();
    }
  }
  double hits() const { return hits_; }

 private:
  std::size_t keys_max_;
  double hits_ = 0;
  std::list<std::uint64_t> order_;
  std::unordered_map<std::uint64_t, std::list<std::uint64_t>::iterator> places_;
};

TEST_CASE("a loop over ten keys is a hit in a pool of ten, and in no smaller one") {
  HitCurve curve(16 * kBytes);
  for (int i = 0; i < 1000; ++i) use(curve, mixed(static_cast<std::uint64_t>(i % 10)));
  const std::vector<std::uint64_t> sizes = {9 * kBytes, 11 * kBytes, 128 * kBytes};
  const auto picture = curve.picture(sizes);
  CHECK(picture.asked == 1000);
  CHECK(picture.sampled_share == 1);
  CHECK(picture.hit_rates[0] == doctest::Approx(0).epsilon(0.001));
  CHECK(picture.hit_rates[1] == doctest::Approx(0.99));
  CHECK(picture.hit_rates[2] == doctest::Approx(0.99));
}

TEST_CASE("values of several sizes count by their bytes") {
  HitCurve curve(1 << 20);
  for (int i = 0; i < 300; ++i) {
    const auto key = static_cast<std::uint64_t>(i % 3);
    use(curve, mixed(key), key == 0 ? 10 * kBytes : kBytes);
  }
  const std::vector<std::uint64_t> sizes = {11 * kBytes, 13 * kBytes};
  const auto picture = curve.picture(sizes);
  CHECK(picture.hit_rates[0] < 0.01);
  CHECK(picture.hit_rates[1] > 0.98);
}

TEST_CASE("nothing was asked: no hit rate, no crash") {
  const HitCurve curve(1 << 20);
  const std::vector<std::uint64_t> sizes = {0, 1 << 20, UINT64_MAX};
  const auto picture = curve.picture(sizes);
  CHECK(picture.asked == 0);
  for (const double rate : picture.hit_rates) CHECK(rate == 0);
}

TEST_CASE("a key of a prompt is of no use without those before it") {
  HitCurve curve(1 << 20);
  for (int i = 0; i < 2; ++i) {
    curve.count_asked(0, 2);
    // The first key was never seen before in either round.
    const double least = curve.ask(mixed(static_cast<std::uint64_t>(100 + i)), 0, 0);
    CHECK(least == HitCurve::kNever);
    CHECK(curve.ask(mixed(7), 0, least) == HitCurve::kNever);
    curve.write(mixed(7), kBytes);
  }
  const std::vector<std::uint64_t> sizes = {1 << 20};
  CHECK(curve.picture(sizes).hit_rates[0] == 0);
}

TEST_CASE("a sample of many keys is within two points of the truth, at every size") {
  constexpr std::uint64_t kKeys = 100'000;
  const std::vector<std::uint64_t> sizes = {1'000, 5'000, 25'000, 75'000};
  HitCurve curve(25'000 * kBytes);
  std::vector<Lru> pools(sizes.begin(), sizes.end());
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(0, 1);
  constexpr int kUses = 300'000;
  for (int i = 0; i < kUses; ++i) {
    // Popular keys are asked for far more often than others.
    const auto key = static_cast<std::uint64_t>(kKeys * std::pow(uniform(random), 4));
    use(curve, mixed(key));
    for (Lru& pool : pools) pool.use(key);
  }
  std::vector<std::uint64_t> bytes;
  for (const auto size : sizes) bytes.push_back(size * kBytes);
  const auto picture = curve.picture(bytes);
  CHECK(picture.sampled_share < 0.7);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    CAPTURE(sizes[i]);
    CHECK(std::abs(picture.hit_rates[i] - pools[i].hits() / kUses) < 0.02);
  }
}

TEST_CASE("keys that no pool of the curve would still have are let go") {
  HitCurve curve(16 * kBytes);  // it looks up to 128 of them
  for (std::uint64_t key = 0; key < 40'000; ++key) use(curve, mixed(key));
  CHECK(curve.picture({}).sampled_share == 1);
}

TEST_CASE("threads that meet pass uses over, and the rates stay right") {
  HitCurve curve(16 * kBytes);
  std::vector<std::thread> threads;
  std::atomic<bool> is_seen{false};
  std::atomic<std::uint64_t> uses{0};
  for (int thread = 0; thread < 4; ++thread) {
    // As long as it takes: whoever only looks on can take the curve from all of many uses.
    threads.emplace_back([&] {
      std::uint64_t i = 0;
      for (; i < 20'000 || !is_seen; ++i) use(curve, mixed(i % 10));
      uses += i;
    });
  }
  const std::vector<std::uint64_t> sizes = {16 * kBytes};
  while (curve.picture(sizes).asked < 1000) std::this_thread::yield();  // looks on meanwhile
  is_seen = true;
  for (auto& thread : threads) thread.join();
  const auto picture = curve.picture(sizes);
  CHECK(picture.asked <= uses);
  CHECK(picture.hit_rates[0] > 0.98);
}

TEST_CASE("what was asked long ago counts less") {
  HitCurve curve(16 * kBytes);
  for (std::uint64_t i = 0; i < 270'000; ++i) use(curve, mixed(i), 0);  // no hit
  for (std::uint64_t i = 0; i < 270'000; ++i) use(curve, mixed(i % 8), 0);
  const std::vector<std::uint64_t> sizes = {16 * kBytes};
  CHECK(curve.picture(sizes).hit_rates[0] > 0.6);  // of equally many it would be a half
}

}  // namespace
}  // namespace infinistore
