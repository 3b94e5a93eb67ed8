#include "core/transport/fork_hold.h"

#include <pthread.h>

#include <chrono>
#include <memory>
#include <mutex>

namespace infinistore {
namespace {

constexpr auto kForkWaitMax = std::chrono::milliseconds(500);

// No hold begins while a fork waits: those of many threads, one over the other, would keep it
// waiting.
struct Holds {
  std::timed_mutex beginning;
  std::shared_timed_mutex held;
};
Holds& holds() {
  static Holds one;
  return one;
}

struct ForkLocks {
  std::unique_lock<std::timed_mutex> beginning;
  std::unique_lock<std::shared_timed_mutex> held;
};
ForkLocks& fork_locks() {
  thread_local ForkLocks locks;  // several threads may fork at once
  return locks;
}

void before_fork() {
  auto& locks = fork_locks();
  locks.beginning = std::unique_lock(holds().beginning, kForkWaitMax);
  locks.held = std::unique_lock(holds().held, kForkWaitMax);
}

void in_parent() { fork_locks() = {}; }

// New, not unlocked: the parent's threads that had a part in them are not here.
void in_child() {
  fork_locks().beginning.release();
  fork_locks().held.release();
  std::construct_at(&holds());
}

}  // namespace

std::shared_lock<std::shared_timed_mutex> hold_off_forks() {
  [[maybe_unused]] static const int guarded = ::pthread_atfork(&before_fork, &in_parent, &in_child);
  const std::lock_guard turn(holds().beginning);
  return std::shared_lock(holds().held);
}

}  // namespace infinistore
