#include "core/transport/crew.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace infinistore {
namespace {

constexpr Nanos kLong = 10 * kSecond;

struct Helpers {
  explicit Helpers(Crew& with, int count) : crew(with) {
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([this] {
        while (!is_over) crew.help(is_over, kLong);
      });
    }
  }
  ~Helpers() {
    is_over = true;
    crew.nudge();
    for (auto& thread : threads) thread.join();
  }
  Crew& crew;
  std::atomic<bool> is_over{false};
  std::vector<std::thread> threads;
};

}  // namespace

TEST_CASE("alone, a crew does every part itself, in order") {
  Crew crew;
  CHECK_FALSE(crew.has_helpers());
  for (const std::size_t count : {0, 1, 5}) {
    std::vector<std::size_t> done;
    crew.run(count, [&](std::size_t part) { done.push_back(part); });
    REQUIRE(done.size() == count);
    for (std::size_t i = 0; i < count; ++i) CHECK(done[i] == i);
  }
}

TEST_CASE("every part is done once, however many help, and run() returns after the last") {
  for (const int count : {1, 3, 6}) {
    CAPTURE(count);
    Crew crew;
    Helpers helpers(crew, count);
    for (int job = 0; job < 500; ++job) {
      std::vector<int> times(static_cast<std::size_t>(job % 40),
                             0);  // no atomics: run() orders them
      crew.run(times.size(), [&](std::size_t part) { ++times[part]; });
      for (const int each : times) REQUIRE(each == 1);
    }
  }
}

TEST_CASE("a caller that waits does take a part") {
  Crew crew;
  Helpers helpers(crew, 1);
  while (!crew.has_helpers()) std::this_thread::yield();
  std::atomic<bool> was_helped{false};
  const auto self = std::this_thread::get_id();
  for (int job = 0; job < 1000 && !was_helped; ++job) {
    crew.run(2, [&](std::size_t) {
      if (std::this_thread::get_id() != self) was_helped = true;
      // The first part ends only when the other thread has come for the second, or is late.
      for (int i = 0; i < 1000 && !was_helped; ++i) std::this_thread::yield();
    });
  }
  CHECK(was_helped);
}

TEST_CASE("help ends with what it waits for, in time, and at once where enough others help") {
  Crew crew;
  std::atomic<bool> is_over{true};
  CHECK(crew.help(is_over, kLong));
  is_over = false;
  CHECK_FALSE(crew.help(is_over, kMillisecond));
  {
    const Helpers helpers(crew, 3);
    const MonotonicClock clock;
    // They may take a moment to begin: by then this one helps for as short as it is let.
    bool was_full = false;
    for (int i = 0; i < 1000 && !was_full; ++i) {
      const Nanos begin = clock.now();
      CHECK_FALSE(crew.help(is_over, 20 * kMillisecond));
      was_full = clock.now() - begin < 20 * kMillisecond;
    }
    CHECK(was_full);
  }
  CHECK_FALSE(crew.has_helpers());
}

}  // namespace infinistore
