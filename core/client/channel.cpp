#include "core/client/channel.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/thread.h"
#include "core/transport/rdma/client_link.h"
#include "core/transport/shm/client_link.h"
#include "core/transport/tcp/client_link.h"
#include "core/wire/codec.h"

namespace infinistore {
namespace {

// In flight at most: together below kSessionRequestsMax.  Calls are small; gets that wait for a
// writer only cost their place.
constexpr std::size_t kCallsInFlightMax = 64;
constexpr std::size_t kWaitingInFlightMax = 64;
constexpr std::size_t kBulkInFlightMax = 64;
static_assert(kCallsInFlightMax + kWaitingInFlightMax + kBulkInFlightMax < kSessionRequestsMax);

// Copies of so little are done when their frame is read.
constexpr std::uint64_t kAtOnceBytesMax = 256 * 1024;

// An awake thread gives its turn away so often.
constexpr Nanos kLookAwake = 10 * kMicrosecond;

// A GRANT, and the RESULT that follows at once if nothing was granted.
constexpr std::size_t kHeldMax = 2;

constexpr Nanos kBackoffMin = 20 * kMillisecond;
constexpr Nanos kBackoffMax = 500 * kMillisecond;

Error link_error(Code code, const char* what) { return {code, what}; }

// An engine pins its threads to cores; a thread that it starts inherits that, and would fight it.
void use_all_cpus() noexcept {
  std::array<cpu_set_t, 8> all{};  // 8,192 CPUs
  for (auto& set : all) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &set);
  }
  ::sched_setaffinity(0, sizeof all, all.data());  // the kernel keeps those that it may use
}

}  // namespace

Channel::Channel(const ClientOptions& options, const ClientIdentity& identity,
                 TransportChoice choice, const Clock& clock, ClientCounters& counters, Crew& crew,
                 RdmaClient& rdma)
    : options_(options),
      identity_(identity),
      choice_(choice),
      clock_(clock),
      counters_(counters),
      crew_(crew),
      rdma_(rdma) {
  const auto limit = [this](Lane lane) -> std::size_t& {
    return queues_[static_cast<std::size_t>(lane)].in_flight_max;
  };
  limit(Lane::kCall) = kCallsInFlightMax;
  limit(Lane::kBulk) = std::min(options.requests_max, kBulkInFlightMax);
  limit(Lane::kWaiting) = kWaitingInFlightMax;
}

Channel::~Channel() { stop(); }

void Channel::start() {
  thread_ = start_thread("infinistore-io", [this] { run(); });
}

Error Channel::wait_dialled() {
  std::unique_lock lock(mutex_.native());
  while (!first_dial_) dialled_changed_.wait(lock);
  return *first_dial_;
}

void Channel::submit(std::vector<std::unique_ptr<Request>> requests, bool is_awaited, Gate* gate) {
  if (gate == nullptr && (send_alone(requests, is_awaited) || begin_here(requests))) return;
  leave_to_thread(std::move(requests), gate);
}

void Channel::leave_to_thread(std::vector<std::unique_ptr<Request>> requests, Gate* gate) {
  bool is_stopped = false;
  {
    const MutexLock lock(mutex_);
    is_stopped = is_stopped_;
    if (!is_stopped && gate != nullptr) {
      inbox_.gated.push_back({gate, std::exchange(requests, {})});
    } else if (!is_stopped) {
      std::move(requests.begin(), requests.end(), std::back_inserter(inbox_.requests));
    }
  }
  if (!is_stopped) {
    poller_.wake();
    return;
  }
  if (gate != nullptr) gate->forget(poller_);
  for (auto& request : requests) request->fail({Code::kClosed, "the client is closed"});
}

void Channel::cancel(std::uint64_t operation_id) {
  {
    const MutexLock lock(mutex_);
    inbox_.cancels.push_back(operation_id);
  }
  poller_.wake();
}

void Channel::stop() {
  {
    const MutexLock lock(mutex_);
    is_stopped_ = true;
    inbox_.stops = true;
  }
  poller_.wake();
  if (thread_.joinable()) thread_.join();
}

ServerInfo Channel::server() const {
  const MutexLock lock(mutex_);
  return server_;
}

void Channel::close_after_fork() noexcept {
  const int fd = socket_fd_.exchange(-1);
  if (fd >= 0) ::close(fd);
}

// ---- the thread ----

void Channel::run() {
  use_all_cpus();
  for (;;) {
    Nanos timeout = -1;
    bool is_awake = false;
    std::uint64_t others_turns = 0;
    {
      const MutexLock lock(turn_);
      if (!prepare()) break;
      const Nanos now = clock_.now();
      timeout = held_.empty() && !has_more_to_start_ ? next_deadline(now) : 0;
      is_awake = stays_awake(now) && timeout != 0;
      if (is_awake) timeout = timeout < 0 ? kLookAwake : std::min(timeout, kLookAwake);
      looks_at_ = timeout < 0 ? 0 : now + timeout;
      others_turns = others_turns_;
    }
    is_awake ? poller_.wait_awake(timeout) : poller_.wait(timeout);
    const MutexLock lock(turn_);
    if (others_turns_ != others_turns) poller_.wait(0);  // what it saw may have been dealt with
    poller_.dispatch();
    react();
    take_copied();
    deal_with_one_held();
  }
  const MutexLock lock(turn_);
  end_all();
}

// All that can be done before a sleep.  False: stop.
bool Channel::prepare() {
  if (!take_inbox()) return false;
  release_delayed(clock_.now());
  release_gated();
  if (!stream_) connect_if_wanted();
  if (stream_) stream_->watch(true);
  pump();
  return true;
}

// After the poller's calls.
void Channel::react() {
  if (!stream_) return;
  const Nanos now = clock_.now();
  note_progress(now, looks_at_ == 0 ? 0 : now - looks_at_);
  check_deadlines(now);
  if (stream_->deliver()) drop_connection();
}

// ---- what comes and goes ----

// False: stop.
bool Channel::take_inbox() {
  Inbox inbox;
  {
    const MutexLock lock(mutex_);
    std::swap(inbox, inbox_);
  }
  for (auto& request : inbox.requests) {
    auto& queue = queue_of(*request);
    queue.waiting.push_back(std::move(request));
  }
  std::move(inbox.gated.begin(), inbox.gated.end(), std::back_inserter(gated_));
  for (const auto id : inbox.cancels) cancel_here(id);
  return !inbox.stops;
}

void Channel::cancel_here(std::uint64_t operation_id) {
  const Error reason{Code::kCancelled, "cancelled"};
  for (auto& queue : queues_) {
    std::erase_if(queue.waiting, [&](const auto& request) {
      if (request->operation_id() != operation_id) return false;
      request->fail(reason);
      return true;
    });
  }
  std::erase_if(gated_, [&](auto& gated) {
    if (gated.requests.front()->operation_id() != operation_id) return false;
    gated.gate->forget(poller_);
    for (auto& request : gated.requests) request->fail(reason);
    return true;
  });
  std::erase_if(delayed_, [&](const auto& delayed) {
    if (delayed.request->operation_id() != operation_id) return false;
    delayed.request->fail(reason);
    return true;
  });
  for (auto& [id, flight] : flights_) {
    if (flight.request->operation_id() != operation_id) continue;
    auto here = line(id);
    flight.request->cancel(reason, here);
  }
  collect_follow_ups();
}

void Channel::connect_if_wanted() {
  bool is_first = false;
  {
    const MutexLock lock(mutex_);
    is_first = !first_dial_.has_value();
  }
  const bool is_wanted =
      std::any_of(queues_.begin(), queues_.end(), [](const auto& q) { return !q.waiting.empty(); });
  if (!is_first && !is_wanted) return;
  if (clock_.now() < retry_at_) {
    fail_waiting(dial_failure_);
    return;
  }
  auto dialled = dial(options_, identity_, choice_, rdma_);
  if (dialled) {
    connected(std::move(*dialled));
    return;
  }
  dial_failure_ = dialled.error();
  backoff_ = std::clamp(2 * backoff_, kBackoffMin, kBackoffMax);
  retry_at_ = clock_.now() + backoff_;
  fail_waiting(dial_failure_);
  tell_dialled(dial_failure_);
}

void Channel::connected(Dialled dialled) {
  backoff_ = 0;
  counters_.connects.fetch_add(1, std::memory_order_relaxed);
  socket_fd_ = dialled.socket.get();
  stream_ =
      std::make_unique<Stream>(std::move(dialled.socket), poller_, *this, std::move(dialled.tls));
  if (dialled.pool) {
    link_ = make_shm_link(*stream_, std::move(*dialled.pool), options_.verifies, crew_, poller_);
  } else if (dialled.pair) {
    link_ = make_rdma_link(*stream_, std::move(*dialled.pair), rdma_, options_.verifies,
                           choice_ == TransportChoice::kRdma, poller_);
  } else {
    link_ = make_tcp_link(*stream_, options_.verifies, poller_);
  }
  moved_bytes_ = stream_->moved_bytes();
  put_bytes_max_ = dialled.server.pool_bytes / kPutShareOfPool;
  {
    const MutexLock lock(mutex_);
    server_ = std::move(dialled.server);
  }
  tell_dialled({Code::kOk, {}});
}

void Channel::tell_dialled(const Error& outcome) {
  const MutexLock lock(mutex_);
  if (first_dial_) return;
  first_dial_ = outcome;
  dialled_changed_.notify_all();
}

// One that a GPU serves and no more: a GPU has nothing to do until the thread has seen an answer,
// and starting all that may start would take it as long as copying a tenth of them.
void Channel::pump() {
  has_more_to_start_ = false;
  for (auto& queue : queues_) {
    while (stream_ && stream_->is_open() && may_start(queue)) {
      if (has_more_to_start_) return;
      auto request = std::move(queue.waiting.front());
      queue.waiting.pop_front();
      const auto id = next_id_++;
      auto here = line(id);
      const Code started = request->start(here);
      if (started == Code::kSetup) continue;
      if (started != Code::kOk) {  // too much is queued: the server reads slowly
        queue.waiting.push_front(std::move(request));
        break;
      }
      const Nanos now = clock_.now();
      if (flights_.empty()) progress_at_ = now;
      active_at_ = now;
      ++queue.in_flight;
      put_bytes_in_flight_ += request->put_bytes();
      has_more_to_start_ = request->uses_gpu();
      const Nanos deadline = now + deadline_after(*request);
      flights_.emplace(id, Flight{std::move(request), now, deadline});
    }
  }
}

bool Channel::may_start(const Queue& queue) const {
  if (queue.waiting.empty() || queue.in_flight >= queue.in_flight_max) return false;
  const auto bytes = queue.waiting.front()->put_bytes();
  return bytes == 0 || put_bytes_in_flight_ == 0 || put_bytes_in_flight_ + bytes <= put_bytes_max_;
}

std::unique_ptr<Request> Channel::land(std::uint64_t request_id) {
  const auto node = flights_.extract(request_id);
  auto request = std::move(node.mapped().request);
  --queue_of(*request).in_flight;
  put_bytes_in_flight_ -= request->put_bytes();
  return request;
}

Line Channel::line(std::uint64_t request_id) {
  return {.stream = *stream_,
          .link = *link_,
          .counters = counters_,
          .request_id = request_id,
          .follow_ups = follow_ups_};
}

void Channel::collect_follow_ups() {
  for (auto& request : follow_ups_) {
    auto& queue = queue_of(*request);
    queue.waiting.push_back(std::move(request));
  }
  follow_ups_.clear();
}

// ---- what the stream tells ----

Payload* Channel::on_frame(const FrameHeader& header, Bytes body) {
  if (header.opcode == Opcode::kError) {
    refused(header, body);
    return nullptr;
  }
  if (header.opcode == Opcode::kMoving) return nullptr;  // it came: that is progress
  const auto found = flights_.find(header.request_id);
  if (found == flights_.end()) {
    stream_->close(link_error(Code::kProtocol, "the server answered what nobody asked"));
    return nullptr;
  }
  auto& held = found->second.held;
  if (held == kHeldMax) {
    stream_->close(link_error(Code::kProtocol, "the server answered again and again"));
    return nullptr;
  }
  if (held > 0 || brings_copies(header, *found->second.request)) {
    ++held;
    held_.push_back({header, {body.begin(), body.end()}});
    return nullptr;
  }
  return deal_with(header, body);
}

// Over shared memory an answer to a large request is followed by copies as long as many round
// trips.  Between those of two answers the thread looks at the socket and starts what it may, so
// that the server is never done with all it was given: a wave of requests waiting for a wave of
// answers leaves both ends idle in turn (writes of 64 KiB: a tenth slower, measured).
bool Channel::brings_copies(const FrameHeader& header, const Request& request) const {
  return link_->shares_memory() && header.payload_bytes == 0 &&
         request.bulk_bytes() > kAtOnceBytesMax &&
         (header.opcode == Opcode::kGrant || header.opcode == Opcode::kData);
}

void Channel::deal_with_one_held() {
  if (held_.empty()) return;
  const HeldFrame frame = std::move(held_.front());
  held_.pop_front();
  const auto found = flights_.find(frame.header.request_id);
  if (found == flights_.end() || !stream_->is_open()) return;
  --found->second.held;
  deal_with(frame.header, frame.body);
  progress_at_ = clock_.now();
}

Payload* Channel::deal_with(const FrameHeader& header, Bytes body) {
  auto& request = *flights_.at(header.request_id).request;
  auto here = line(header.request_id);
  auto step = request.on_frame(header, body, here);
  collect_follow_ups();
  if (step && header.payload_bytes > 0 && step.value() == Step::kWait) return request.payload();
  advance(header.request_id, std::move(step));
  return nullptr;
}

void Channel::on_payload(const FrameHeader& header) {
  auto here = line(header.request_id);
  const auto step = flights_.at(header.request_id).request->on_moved(here);
  collect_follow_ups();
  advance(header.request_id, step);
}

void Channel::on_sent(std::uint64_t request_id) {
  auto here = line(request_id);
  advance(request_id, flights_.at(request_id).request->on_moved(here));
}

void Channel::on_close(const Error& reason) { close_reason_ = reason; }

void Channel::advance(std::uint64_t request_id, Result<Step> step) {
  if (!step) {
    stream_->close(step.error());
  } else if (step.value() == Step::kAgain) {
    auto request = land(request_id);
    const Nanos due = clock_.now() + request->delay();
    delayed_.push_back({std::move(request), due});
  } else if (step.value() == Step::kDone) {
    land(request_id);
  }
}

void Channel::refused(const FrameHeader& header, Bytes body) {
  const auto refusal = decode_error(body);
  if (!refusal || refusal->code == Code::kOk) {
    stream_->close(link_error(Code::kProtocol, "the server sent a malformed ERROR"));
    return;
  }
  const Error reason{refusal->code, std::string(refusal->message)};
  const auto found = flights_.find(header.request_id);
  if (found == flights_.end()) {
    stream_->close(reason);
    return;
  }
  auto& request = *found->second.request;
  auto here = line(header.request_id);
  request.on_refused();
  request.cancel(reason, here);
  if (request.operation_id() != 0) {
    stream_->close(reason);  // its bulk bytes are still under way: closing fences them
  } else {
    land(header.request_id);
  }
}

}  // namespace infinistore
