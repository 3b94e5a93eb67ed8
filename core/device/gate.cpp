#include "core/device/gate.h"

#include <utility>

namespace infinistore {

Result<std::unique_ptr<Gate>> Gate::after(Gpu& gpu, CuStream stream) {
  const CurrentContext current(gpu);
  auto gate = std::make_unique<Gate>(Private{}, gpu);
  auto error = gpu.make_event(gate->event_);
  if (error.code != Code::kOk) return error;
  error = gpu.check(gpu.driver().event_record(gate->event_, stream), "marking the caller's stream");
  if (error.code != Code::kOk) return error;
  if (gate->state().code == Code::kOk) return gate;  // nothing is under way: nobody need be woken
  auto watcher = gpu.watcher(stream);
  if (!watcher) return watcher.error();
  gate->watcher_ = watcher.value();
  return gate;
}

Gate::~Gate() { gpu_.destroy_event(event_); }

Error Gate::state() const {
  if (event_ == nullptr) return {Code::kOk, {}};
  const CuStatus status = gpu_.driver().event_query(event_);
  if (status == kCuNotReady) return {Code::kOverloaded, "the caller's stream is at work"};
  return gpu_.check(status, "work that the caller had queued");
}

void Gate::watch(std::vector<Waker*> wakers) {
  if (watcher_ == nullptr) return;
  const CurrentContext current(gpu_);
  call_.emplace(gpu_, watcher_, event_, std::move(wakers));
}

void Gate::forget(const Waker& waker) {
  if (call_) call_->forget(waker);
}

}  // namespace infinistore
