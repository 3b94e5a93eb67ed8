// What GPUs have to do with a channel's requests: work that comes before them, and their copies.
#include <algorithm>
#include <limits>

#include "core/client/channel.h"

namespace infinistore {
namespace {

constexpr Nanos kLookAtCopy = 200 * kMicrosecond;  // one of 8 MiB takes about as long
constexpr Nanos kLookAtGate = kMillisecond;
// Once roused: until the batch has come, and while a GPU is at work, as 256 MiB take.
constexpr Nanos kAwakeAtFirst = 500 * kMicrosecond;
constexpr Nanos kAwakeMax = 10 * kMillisecond;

}  // namespace

// Whoever is awake already has an answer more.
void Channel::rouse() {
  roused_at_ = clock_.now();
  std::vector<std::unique_ptr<Request>> ping;
  ping.push_back(make_call_request(std::make_unique<Call>(CallSpec{})));
  leave_to_thread(std::move(ping), nullptr);
}

// Waking takes a share of what a GPU takes for a batch: at its first answer, and at each copy's end
// (docs/decisions/0007).
bool Channel::stays_awake(Nanos now) const {
  const Nanos since = now - roused_at_;
  if (since >= kAwakeMax) return false;
  return since < kAwakeAtFirst ||
         std::ranges::any_of(
             flights_, [](const auto& flight) { return flight.second.request->uses_gpu(); });
}

// Requests whose gates have opened, or never will.
void Channel::release_gated() {
  std::erase_if(gated_, [this](auto& gated) {
    const Error state = gated.gate->state();
    if (state.code == Code::kOverloaded) return false;
    gated.gate->forget(poller_);
    for (auto& request : gated.requests) {
      if (state.code == Code::kOk) {
        auto& queue = queue_of(*request);
        queue.waiting.push_back(std::move(request));
      } else {
        request->fail(state);
      }
    }
    return true;
  });
}

void Channel::fail_gated(const Error& reason) {
  for (auto& gated : gated_) {
    gated.gate->forget(poller_);
    for (auto& request : gated.requests) request->fail(reason);
  }
  gated_.clear();
}

// CUDA wakes the thread, though after an error not at all, and it seems late at times
// (docs/gpu.md).
Nanos Channel::next_look_at_gpu(Nanos now) const {
  if (link_ && !link_->copies().empty()) return now + kLookAtCopy;
  return gated_.empty() ? std::numeric_limits<Nanos>::max() : now + kLookAtGate;
}

void Channel::take_copied() {
  if (!stream_ || link_->copies().empty()) return;
  for (const auto request_id : link_->copies().take()) {
    progress_at_ = clock_.now();
    auto& flight = flights_.at(request_id);
    flight.deadline = std::max(flight.deadline, progress_at_ + deadline_after(*flight.request));
    auto here = line(request_id);
    auto step = flight.request->on_copied(here);
    collect_follow_ups();
    advance(request_id, std::move(step));
  }
  if (stream_->deliver()) drop_connection();
}

Error Channel::prepare(const Gpu& gpu) {
  const MutexLock lock(turn_);
  return link_ ? link_->prepare(gpu) : Error{Code::kOk, {}};
}

}  // namespace infinistore
