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

// A GPU's copy ends elsewhere than at the socket.
bool is_small(const Request& request) {
  return request.bulk_bytes() <= kAloneBytesMax && !request.uses_gpu();
}

static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT);

}  // namespace

bool Channel::is_idle() const { return flights_.empty() && none_waits(); }

bool Channel::none_waits() const {
  return delayed_.empty() && std::all_of(queues_.begin(), queues_.end(),
                                         [](const auto& queue) { return queue.waiting.empty(); });
}

// Whether a caller who holds `turn_` may send at once: there is a connection, and nobody was first.
bool Channel::may_send_here() const {
  if (!stream_ || !stream_->is_open() || !none_waits()) return false;
  const MutexLock lock(mutex_);
  return !is_stopped_ && inbox_.requests.empty();
}

// Whether it did: only a small request to an idle channel that is connected.
//
// From then on the thread is not woken by the socket: it would mostly be just too early for the
// caller, who comes from Python, and take the answer from him (half as long again, measured).  Who
// does not come gets it when the thread looks again, or when he asks whether it is there.  A put
// goes on with the answer, and others may wait for it, so its socket stays watched.
bool Channel::send_alone(std::vector<std::unique_ptr<Request>>& requests, bool is_awaited) {
  if (requests.size() != 1 || !is_small(*requests.front())) return false;
  if (!turn_.try_lock()) return false;
  const bool is_alone = flights_.empty() && may_send_here();
  bool must_wake = false;
  if (is_alone) {
    ++others_turns_;
    stream_->watch(!is_awaited || requests.front()->put_bytes() > 0);
    auto& queue = queue_of(*requests.front());
    queue.waiting.push_back(std::move(requests.front()));
    requests.clear();
    pump();
    // Its deadline needs the thread, as does what could not be sent.
    must_wake = looks_at_ == 0 || flights_.empty() || looks_at_ > clock_.now() + kLookAgain;
  }
  turn_.unlock();
  if (must_wake) poller_.wake();
  return is_alone;
}

// Whether it did: only a GPU's requests, where no others wait.
//
// The first leaves at once, so that the server wakes up while our thread does; together they take
// as long as a GPU takes for several requests.
bool Channel::begin_here(std::vector<std::unique_ptr<Request>>& requests) {
  if (!requests.front()->uses_gpu() || !turn_.try_lock()) return false;
  const bool may_begin = may_send_here();
  if (may_begin) {
    ++others_turns_;
    stream_->watch(true);
    auto& waiting = queue_of(*requests.front()).waiting;
    std::move(requests.begin(), requests.end(), std::back_inserter(waiting));
    pump();
  }
  turn_.unlock();
  if (may_begin) poller_.wake();
  return may_begin;
}

void Channel::wait_at_socket(const Operation& operation, Nanos patience) {
  if (!turn_.try_lock()) return;
  const bool is_ours = stream_ && stream_->is_open() && flights_.size() == 1 &&
                       flights_.begin()->second.request->operation_id() == operation.id() &&
                       is_small(*flights_.begin()->second.request);
  bool must_wake = false;
  if (is_ours) {
    ++others_turns_;
    await_answer(operation, clock_.now() + std::min(patience, kAtSocketMax));
    must_wake = !is_idle() || !stream_->is_open();
  }
  turn_.unlock();
  if (must_wake) poller_.wake();
}

void Channel::await_answer(const Operation& operation, Nanos until) {
  stream_->watch(false);
  Nanos left = until - clock_.now();
  while (!operation.is_done() && !flights_.empty() && stream_->is_open()) {
    const auto events = static_cast<short>(stream_->interest());
    pollfd socket{.fd = stream_->fd(), .events = events, .revents = 0};
    const timespec time{.tv_sec = 0, .tv_nsec = std::max<Nanos>(left, 0)};
    if (::ppoll(&socket, 1, &time, nullptr) > 0) {
      stream_->on_ready(static_cast<std::uint32_t>(socket.revents));
      pump();
    }
    left = until - clock_.now();
    if (left <= 0) break;
  }
  // Else the next caller is as likely as not to wait here too.
  if (!operation.is_done()) stream_->watch(true);
}

}  // namespace infinistore
