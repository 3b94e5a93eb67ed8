#include "core/device/stream_call.h"

#include <utility>

namespace infinistore {

StreamCall::StreamCall(const Gpu& gpu, CuStream stream, CuEvent event, std::vector<Waker*> wakers)
    : state_(std::make_unique<State>(std::move(wakers))) {
  const auto& driver = gpu.driver();
  if (driver.stream_wait_event(stream, event, 0) == kCuSuccess &&
      driver.launch_host_function(stream, &StreamCall::come, state_.get()) == kCuSuccess) {
    return;
  }
  const MutexLock lock(state_->mutex);
  state_->wakers.clear();
  state_->has_come = true;  // that is: it will touch nothing any more
}

StreamCall::~StreamCall() {
  bool is_last = false;
  {
    const MutexLock lock(state_->mutex);
    state_->wakers.clear();
    state_->is_left = true;
    is_last = state_->has_come;
  }
  if (!is_last) [[maybe_unused]]
    const auto* const left = state_.release();
}

bool StreamCall::has_come() {
  const MutexLock lock(state_->mutex);
  return state_->has_come;
}

void StreamCall::forget(const Waker& waker) {
  const MutexLock lock(state_->mutex);
  std::erase(state_->wakers, &waker);
}

void StreamCall::come(void* data) {
  std::unique_ptr<State> last;
  auto* const state = static_cast<State*>(data);
  {
    const MutexLock lock(state->mutex);
    state->has_come = true;
    for (auto* const waker : state->wakers) waker->wake();
    if (state->is_left) last.reset(state);
  }
}

}  // namespace infinistore
