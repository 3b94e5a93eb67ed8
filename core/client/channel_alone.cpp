// A caller in the place of his channel's thread: a lone small request, sent and awaited by who
// asks.
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>

#include "core/client/channel.h"

namespace infinistore {
namespace {

// A caller sends and waits for it himself.
constexpr std::uint64_t kAloneBytesMax = 64 * 1024;
// Then the thread takes over: others may want it.  Far more than a round trip on one host.
constexpr Nanos kAtSocketMax = 200 * kMicrosecond;

static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT);

}  // namespace

bool Channel::is_idle() const {
  return flights_.empty() && delayed_.empty() &&
         std::all_of(queues_.begin(), queues_.end(),
                     [](const auto& queue) { return queue.waiting.empty(); });
}

// Whether it did: only a small request to an idle channel that is connected.
bool Channel::send_alone(std::vector<std::unique_ptr<Request>>& requests) {
  if (requests.size() != 1 || requests.front()->bulk_bytes() > kAloneBytesMax) return false;
  if (!turn_.try_lock()) return false;
  bool is_alone = stream_ && stream_->is_open() && is_idle();
  if (is_alone) {
    const MutexLock lock(mutex_);
    is_alone = !is_stopped_ && inbox_.requests.empty();
  }
  bool must_wake = false;
  if (is_alone) {
    ++others_turns_;
    auto& queue = queue_of(*requests.front());
    queue.waiting.push_back(std::move(requests.front()));
    requests.clear();
    pump();
    // Its deadline needs the thread, as does what could not be sent.
    must_wake = looks_at_ == 0 || flights_.empty() || looks_at_ > due(flights_.begin()->second);
  }
  turn_.unlock();
  if (must_wake) poller_.wake();
  return is_alone;
}

void Channel::wait_at_socket(const Operation& operation) {
  if (!turn_.try_lock()) return;
  const bool is_ours = stream_ && stream_->is_open() && flights_.size() == 1 &&
                       flights_.begin()->second.request->operation_id() == operation.id() &&
                       flights_.begin()->second.request->bulk_bytes() <= kAloneBytesMax;
  bool must_wake = false;
  if (is_ours) {
    ++others_turns_;
    await_answer(operation);
    must_wake = !is_idle() || !stream_->is_open();
  }
  turn_.unlock();
  if (must_wake) poller_.wake();
}

void Channel::await_answer(const Operation& operation) {
  const Nanos until = clock_.now() + kAtSocketMax;
  stream_->watch(false);  // the answer shall wake one of us
  while (!operation.is_done() && !flights_.empty() && stream_->is_open()) {
    const Nanos left = until - clock_.now();
    if (left <= 0) break;
    const auto events = static_cast<short>(stream_->interest());
    pollfd socket{.fd = stream_->fd(), .events = events, .revents = 0};
    const timespec time{.tv_sec = 0, .tv_nsec = left};
    if (::ppoll(&socket, 1, &time, nullptr) > 0) {
      stream_->on_ready(static_cast<std::uint32_t>(socket.revents));
      pump();
    }
  }
  stream_->watch(true);
}

}  // namespace infinistore
