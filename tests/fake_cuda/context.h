#pragma once
// Contexts of the double's devices, which one a thread has current, and how a call begins.

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fake_cuda/cuda_names.h"

namespace fake_cuda {

// Never freed: a handle that a test keeps for too long is an error of the test's, not a crash.
struct Context {
  explicit Context(int ordinal) : device(ordinal) {}

  const int device;
  // Set by a kernel that fails: from then on it is the answer to every call in this context.
  std::atomic<CUresult> error{CUDA_SUCCESS};
};

class Devices {
 public:
  static Devices& all();
  Devices();

  int count() const { return count_; }
  CUresult initialize();
  bool is_initialized() const { return is_initialized_; }

  Context* primary(int device);  // nullptr: there is no such device
  Context* make(int device);     // another one
  Context* find(CUcontext handle);
  std::vector<Context*> contexts();

  // CUDA_ERROR_INVALID_VALUE: it is none that the double knows.
  CUresult attribute(int attribute, int& value);
  void set_attribute(int attribute, int value);

 private:
  const int count_;
  std::atomic<bool> is_initialized_{false};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Context>> contexts_;  // each device's primary one, then others
  std::map<int, int> attributes_;
};

// The calling thread's stack of contexts, its last one current.
std::vector<Context*>& context_stack();
Context* current_context();  // nullptr: none

inline CUcontext handle_of(Context* context) { return reinterpret_cast<CUcontext>(context); }

// Calls that a test made fail: `passing` of that name go well before, and all after.  Negative:
// none does.
void arm_failure(const std::string& call, CUresult status, int passing);
CUresult take_failure(const std::string& call);
void forget_failures();
std::uint64_t armed_failures();

// Whether the calling thread is in a function that cuLaunchHostFunc has queued.
bool& is_in_host_function();

// kContextOnly: also one that has failed, for giving back what the double counts.
enum class Needs { kNothing, kDriver, kContext, kContextOnly };
CUresult begin_call(const char* name, Needs needs);

// A call of the API: what `body` returns, unless it may not begin or its context has failed.
template <class Body>
CUresult call(const char* name, Needs needs, Body body) {
  const CUresult status = begin_call(name, needs);
  if (status != CUDA_SUCCESS) return status;
  const CUresult outcome = body();
  if (needs != Needs::kContextOnly) return outcome;
  const CUresult error = current_context()->error;
  return error == CUDA_SUCCESS ? outcome : error;
}

}  // namespace fake_cuda
