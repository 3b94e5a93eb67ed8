#pragma once
// StreamCall: CUDA's call when a stream has come to some point: it wakes who waits for that.
//
// CUDA calls late, or never if the device fails, and cannot be asked not to: what it touches
// belongs to who of both is through with it last.

#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/poller.h"
#include "core/device/gpu.h"

namespace infinistore {

class StreamCall {
 public:
  // After `event`, by way of `stream`.  If CUDA refuses, it never comes: look from time to time.
  StreamCall(const Gpu& gpu, CuStream stream, CuEvent event, std::vector<Waker*> wakers);
  ~StreamCall();
  StreamCall(const StreamCall&) = delete;
  StreamCall& operator=(const StreamCall&) = delete;

  bool has_come();
  // After it, it is not woken any more.
  void forget(const Waker& waker);

 private:
  struct State {
    explicit State(std::vector<Waker*> all) : wakers(std::move(all)) {}

    Mutex mutex;
    std::vector<Waker*> wakers GUARDED_BY(mutex);
    bool has_come GUARDED_BY(mutex) = false;
    bool is_left GUARDED_BY(mutex) = false;
  };
  static void come(void* state);

  std::unique_ptr<State> state_;
};

}  // namespace infinistore
