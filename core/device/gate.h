#pragma once
// Gate: closed until a caller's stream has done what was queued on it.

#include <memory>
#include <optional>
#include <vector>

#include "core/base/poller.h"
#include "core/base/result.h"
#include "core/device/gpu.h"
#include "core/device/stream_call.h"

namespace infinistore {

class Gate {
  struct Private {};

 public:
  // After what is queued on `stream` now.
  static Result<std::unique_ptr<Gate>> after(Gpu& gpu, CuStream stream);
  Gate(Private, Gpu& gpu) noexcept : gpu_(gpu) {}
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  Gpu& gpu() const noexcept { return gpu_; }
  // kOk: it is open; kOverloaded: not yet; else why it never will be.
  Error state() const;
  // Wakes them once it is open.  At most once, before any of them asks.
  void watch(std::vector<Waker*> wakers);
  // Whoever was named to watch() says so before he goes.
  void forget(const Waker& waker);

 private:
  Gpu& gpu_;
  CuEvent event_ = nullptr;
  CuStream watcher_ = nullptr;  // nullptr: it was open from the start
  std::optional<StreamCall> call_;
};

}  // namespace infinistore
