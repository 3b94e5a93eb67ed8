// The ends of a channel's requests that no answer brings: deadlines, lost connections, closing.
#include <algorithm>
#include <limits>

#include "core/client/channel.h"

namespace infinistore {
namespace {

// A request ends after this much even if some bytes keep moving: its bytes at a rate that no useful
// link falls below, and a while for the server.
constexpr std::uint64_t kFloorBytesPerSecond = 10'000'000;
constexpr Nanos kGrace = 5 * kSecond;
// Woken so much too late, this process was stopped or starved: the server is not to blame.
constexpr Nanos kLateMax = 100 * kMillisecond;
constexpr Nanos kLinger = kSecond;
constexpr Nanos kGoodbyeMax = 100 * kMillisecond;

}  // namespace

Nanos Channel::deadline_after(const Request& request) {
  const auto moving = static_cast<Nanos>(request.bulk_bytes() / (kFloorBytesPerSecond / 1000));
  return request.patience() + kGrace + moving * kMillisecond;
}

// How long poll() may sleep; negative: for ever.
Nanos Channel::next_deadline(Nanos now) const {
  // A while of looking in vain: callers who send small requests themselves need not wake us then.
  const Nanos never = std::numeric_limits<Nanos>::max();
  Nanos first = now - active_at_ < kLinger ? now + kLookAgain : never;
  first = std::min(first, next_look_at_gpu(now));
  for (const auto& delayed : delayed_) first = std::min(first, delayed.due);
  for (const auto& [id, flight] : flights_) first = std::min(first, due(id, flight));
  return first == never ? -1 : std::max<Nanos>(first - now, 0);
}

Nanos Channel::due(std::uint64_t request_id, const Flight& flight) const {
  // A GPU's time is not the server's: behind long kernels a copy may wait for any time.
  if (link_->copies().has(request_id)) return std::numeric_limits<Nanos>::max();
  const Nanos stalled = std::max(progress_at_, flight.started) + options_.progress_timeout +
                        flight.request->patience();
  return std::min(stalled, flight.deadline);
}

void Channel::release_delayed(Nanos now) {
  for (auto& delayed : delayed_) {
    if (delayed.due > now) continue;
    auto& queue = queue_of(*delayed.request);
    queue.waiting.push_front(std::move(delayed.request));
  }
  std::erase_if(delayed_, [](const auto& delayed) { return delayed.request == nullptr; });
}

void Channel::note_progress(Nanos now, Nanos late_by) {
  if (stream_->moved_bytes() != moved_bytes_) {
    moved_bytes_ = stream_->moved_bytes();
    progress_at_ = now;
  }
  if (late_by < kLateMax) return;
  progress_at_ += late_by;
  for (auto& [id, flight] : flights_) {
    flight.started += late_by;
    flight.deadline += late_by;
  }
}

void Channel::check_deadlines(Nanos now) {
  const bool is_over = std::any_of(flights_.begin(), flights_.end(), [&](const auto& entry) {
    return due(entry.first, entry.second) <= now;
  });
  if (!is_over) return;
  counters_.timeouts.fetch_add(1, std::memory_order_relaxed);
  // The turn is ours, so nobody copies.  The server hears of it once it goes on, and what it grants
  // or has granted until then is free at once; else it would be so when this process ends.
  if (link_->shares_memory()) stream_->send(Opcode::kGoodbye, next_id_++, {});
  // The whole connection goes: only so is the memory of what is under way fenced at once.
  stream_->close({Code::kTimeout, "the server did not answer in time"});
}

void Channel::drop_connection() {
  counters_.disconnects.fetch_add(1, std::memory_order_relaxed);
  if (close_reason_.code == Code::kProtocol) {
    counters_.violations.fetch_add(1, std::memory_order_relaxed);
  }
  socket_fd_ = -1;
  stream_.reset();
  link_.reset();
  fail_flights(close_reason_);
  // What waits has waited as long: dialling a server that is stuck would take it as long again.
  if (close_reason_.code == Code::kTimeout) fail_waiting(close_reason_);
}

void Channel::fail_flights(const Error& reason) {
  held_.clear();
  for (auto& [id, flight] : flights_) flight.request->fail(reason);
  flights_.clear();
  for (auto& queue : queues_) queue.in_flight = 0;
  put_bytes_in_flight_ = 0;
}

void Channel::fail_waiting(const Error& reason) {
  for (auto& queue : queues_) {
    for (auto& request : queue.waiting) request->fail(reason);
    queue.waiting.clear();
  }
}

void Channel::end_all() {
  const Error reason{Code::kClosed, "the client was closed"};
  release_delayed(std::numeric_limits<Nanos>::max());
  fail_waiting(reason);
  fail_gated(reason);
  tell_dialled(reason);
  if (!stream_) return;
  for (auto& [id, flight] : flights_) {
    auto here = line(id);
    flight.request->cancel(reason, here);
  }
  const bool is_moving = std::any_of(flights_.begin(), flights_.end(), [](const auto& entry) {
    return entry.second.request->operation_id() != 0;
  });
  // Half a payload cannot be followed by a frame; without a goodbye the server finds out by itself.
  if (!is_moving && stream_->is_open()) {
    stream_->send(Opcode::kGoodbye, next_id_++, {});
    stream_->close_after_sending(reason);
    const Nanos until = clock_.now() + kGoodbyeMax;
    while (stream_->is_open() && clock_.now() < until) poller_.poll(until - clock_.now());
  }
  socket_fd_ = -1;
  stream_.reset();
  link_.reset();
  follow_ups_.clear();
  fail_flights(reason);
}

}  // namespace infinistore
