#include "core/server/background.h"

#include <algorithm>
#include <chrono>

#include "core/base/thread.h"

namespace infinistore {
namespace {

// Some 20 ms of populating: how late a stop or a lease's end may be meanwhile.
constexpr std::uint64_t kChunkBytes = std::uint64_t{32} << 20;
constexpr Nanos kSleepMax = 3600 * kSecond;

}  // namespace

void Background::start() {
  thread_ = start_thread("is-background", [this] { run(); });
}

void Background::stop() {
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Background::note_deadline(Nanos deadline) {
  {
    const MutexLock lock(mutex_);
    if (deadline >= known_deadline_) return;
    known_deadline_ = deadline;
  }
  changed_.notify_all();
}

void Background::run() {
  bool is_populating = true;
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (is_stopping_) return;
      // Before the leases are looked at: a lease that comes after that look lowers it again.
      known_deadline_ = clock_.now() + kSleepMax;
    }
    leases_.expire(clock_.now());
    if (is_populating) {
      is_populating = store_.pool().populate_some(kChunkBytes);
    } else if (step_ && step_()) {
      continue;
    } else {
      wait_for(std::min(leases_.next_deadline(), clock_.now() + kSleepMax));
    }
  }
}

void Background::wait_for(Nanos deadline) NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock lock(mutex_.native());
  known_deadline_ = std::min(known_deadline_, deadline);
  while (!is_stopping_) {
    const Nanos left = known_deadline_ - clock_.now();
    if (left <= 0) return;
    changed_.wait_for(lock, std::chrono::nanoseconds(left));
  }
}

}  // namespace infinistore
