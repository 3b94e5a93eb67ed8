#pragma once
// Poller: waits for descriptors and for a wake-up from another thread.  epoll, level-triggered.
//
// Belongs to one thread, save wake().  Sleeps in the kernel while nothing happens.

#include <sys/epoll.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/clock.h"
#include "core/base/fd.h"

namespace infinistore {

// A thread that shall look again.
class Waker {
 public:
  virtual void wake() noexcept = 0;  // from any thread, also one of CUDA's

 protected:
  ~Waker() = default;
};

class PollTarget {
 public:
  virtual ~PollTarget() = default;
  virtual void on_ready(std::uint32_t events) = 0;  // EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR
};

class Poller final : public Waker {
 public:
  Poller();  // throws std::system_error if the system has no descriptor left

  bool add(int fd, std::uint32_t events, PollTarget& target) noexcept;
  void change(int fd, std::uint32_t events, PollTarget& target) noexcept;
  // After it the target is not called any more, not even for events already collected.
  void remove(int fd, PollTarget& target) noexcept;
  // on_ready(EPOLLIN) in the next dispatch(), which comes at once: the target has bytes to read
  // that its descriptor does not tell of.
  void again(PollTarget& target);

  // Waits at most `timeout` (negative: for ever) and calls the targets that are ready.
  void poll(Nanos timeout) {
    wait(timeout);
    dispatch();
  }
  // Its halves.  Between them nothing may be added or removed, or wait(0) must look again.
  void wait(Nanos timeout);
  // The same without a sleep: it looks again and again, and in between gives the processor away.
  void wait_awake(Nanos timeout);
  void dispatch();

  void wake() noexcept override;  // the current or next poll() returns at once

 private:
  UniqueFd epoll_;
  UniqueFd wakeup_;
  std::vector<epoll_event> events_;  // what wait() saw
  std::size_t event_count_ = 0;
  std::vector<PollTarget*> ready_;  // being called; nullptr: removed meanwhile
  std::vector<PollTarget*> again_;  // to be called next time, likewise
};

}  // namespace infinistore
