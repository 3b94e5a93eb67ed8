#pragma once
// Clock: monotonic time as a parameter, so that tests can move it.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace infinistore {

using Nanos = std::int64_t;  // since an arbitrary start; never wall-clock time

inline constexpr Nanos kMicrosecond = 1'000;
inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanos now() const noexcept = 0;
};

class MonotonicClock final : public Clock {
 public:
  Nanos now() const noexcept override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

class ManualClock final : public Clock {
 public:
  Nanos now() const noexcept override { return now_.load(); }
  void advance(Nanos by) noexcept { now_ += by; }

 private:
  std::atomic<Nanos> now_{1};
};

}  // namespace infinistore
