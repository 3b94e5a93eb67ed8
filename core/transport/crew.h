#pragma once
// Crew: a thread's long jobs, in which callers that have to wait anyway lend a hand.
//
// One core copies less than two can (blocks of 64 KiB, on two: 1.3 times as much with one helper,
// measured); and whoever waits for a copy has a core to spare.
// No thread is started, and a caller that does not wait does nothing.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>

#include "core/base/clock.h"
#include "core/base/mutex.h"

namespace infinistore {

class Crew {
 public:
  Crew() = default;
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Calls `part` once for each number below `count`, some of them on helpers' threads; returns when
  // all calls have.  `part` must not throw.  One job at a time.
  void run(std::size_t count,
           const std::function<void(std::size_t)>& part) NO_THREAD_SAFETY_ANALYSIS;

  // Helps until `is_over`, or until `timeout` has passed: false.  Who sets it, sequentially
  // consistent, calls nudge() after: one of the two then sees the other.
  // Comes back at once with false if there are helpers enough.
  bool help(const std::atomic<bool>& is_over, Nanos timeout) NO_THREAD_SAFETY_ANALYSIS;
  void nudge();

  bool has_helpers() const noexcept { return helpers_.load() > 0; }

 private:
  // Four cores copy as much as most machines' memory takes.
  static constexpr int kHelpersMax = 3;

  struct Job {
    const std::function<void(std::size_t)>& part;
    const std::size_t count;
    std::atomic<std::size_t> next{0};
    int helpers = 0;  // at work on it; guarded by mutex_

    bool is_given_out() const noexcept { return next.load(std::memory_order_relaxed) >= count; }
    void work();
  };

  Mutex mutex_;
  std::condition_variable changed_;   // for helpers: a job, or an end
  std::condition_variable finished_;  // for run(): a helper has done its last part
  Job* job_ GUARDED_BY(mutex_) = nullptr;
  std::atomic<int> helpers_{0};  // changed under mutex_
};

}  // namespace infinistore
