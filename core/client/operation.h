#pragma once
// Operation: something that was submitted, and whether it has ended.
//
// An operation ends once all of its parts have, each on its channel's thread.  Then no thread of
// the client touches it, nor the caller's memory, any more, and its results may be read: its owner
// waits for the end before he destroys it.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/transport/crew.h"

namespace infinistore {

// Ended operations, for a reader that sleeps on a descriptor (asyncio).  Thread-safe.
class Completions {
 public:
  Completions();  // throws std::system_error if the system has no descriptor left

  int fd() const noexcept { return eventfd_; }
  void add(std::uint64_t operation_id);
  std::vector<std::uint64_t> take();  // and makes the descriptor unreadable
  ~Completions();
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

 private:
  int eventfd_;
  Mutex mutex_;
  std::vector<std::uint64_t> ended_ GUARDED_BY(mutex_);
};

class Operation {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // With `ends_awake`, who waits wakes up with so many parts left, and then looks again and again:
  // to wake a thread takes about as long as a GPU takes for them.
  static constexpr std::size_t kPartsNearEnd = 2;

  // Once, before any part may end.  No parts: it has ended.  `crew`: whoever waits for it helps.
  void begin(std::uint64_t id, std::size_t parts, Completions* completions, Crew* crew = nullptr,
             bool ends_awake = false);
  // The part's results are written, and its thread is through with the caller's memory.
  void end_part(const Error* failure);

  std::uint64_t id() const noexcept { return id_; }
  bool is_done() const noexcept { return is_done_.load(std::memory_order_acquire); }
  // False: `timeout` passed first; negative: no timeout.
  bool wait(Nanos timeout);
  // After the end: the first failure of a part as a whole; kOk if there was none.
  const Error& failure() const noexcept { return failure_; }

 protected:
  ~Operation();

 private:
  bool wait_awake(std::chrono::steady_clock::time_point until) const noexcept;

  std::uint64_t id_ = 0;
  Completions* completions_ = nullptr;
  Crew* crew_ = nullptr;
  std::atomic<bool> is_done_{false};  // release: results are written before it
  bool ends_awake_ = false;
  std::atomic<bool> is_near_end_{false};
  std::atomic<bool> was_awake_{false};  // somebody, near the end; once is enough
  Mutex mutex_;
  std::condition_variable changed_;
  std::size_t parts_left_ GUARDED_BY(mutex_) = 0;
  Error failure_{Code::kOk, {}};
};

}  // namespace infinistore
