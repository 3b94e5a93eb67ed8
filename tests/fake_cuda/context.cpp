#include "tests/fake_cuda/context.h"

#include <cstdlib>

namespace fake_cuda {
namespace {

struct Failure {
  CUresult status = CUDA_SUCCESS;
  int passing = 0;
};

struct Failures {
  std::mutex mutex;
  std::map<std::string, Failure> armed;
};

// Here and elsewhere: what lives as long as the process is never destroyed, for streams' threads
// run until its end.
Failures& failures() {
  static Failures& all = *std::make_unique<Failures>().release();
  return all;
}

int device_count() {
  const char* const text = std::getenv("FAKE_CUDA_DEVICES");
  return text == nullptr ? 2 : std::atoi(text);
}

}  // namespace

Devices& Devices::all() {
  static Devices& devices = *std::make_unique<Devices>().release();
  return devices;
}

Devices::Devices() : count_(device_count()) {
  for (int device = 0; device < count_; ++device) {
    contexts_.push_back(std::make_unique<Context>(device));
  }
  attributes_ = {{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 8},
                 {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
                 {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
                 {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
                 {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1}};
}

CUresult Devices::initialize() {
  if (count_ <= 0) return CUDA_ERROR_NO_DEVICE;
  is_initialized_ = true;
  return CUDA_SUCCESS;
}

Context* Devices::primary(int device) {
  const std::lock_guard lock(mutex_);
  if (device < 0 || device >= count_) return nullptr;
  return contexts_[static_cast<std::size_t>(device)].get();
}

Context* Devices::make(int device) {
  const std::lock_guard lock(mutex_);
  if (device < 0 || device >= count_) return nullptr;
  return contexts_.emplace_back(std::make_unique<Context>(device)).get();
}

Context* Devices::find(CUcontext handle) {
  const std::lock_guard lock(mutex_);
  for (const auto& context : contexts_) {
    if (handle_of(context.get()) == handle) return context.get();
  }
  return nullptr;
}

std::vector<Context*> Devices::contexts() {
  const std::lock_guard lock(mutex_);
  std::vector<Context*> all;
  for (const auto& context : contexts_) all.push_back(context.get());
  return all;
}

CUresult Devices::attribute(int attribute, int& value) {
  const std::lock_guard lock(mutex_);
  const auto found = attributes_.find(attribute);
  if (found == attributes_.end()) return CUDA_ERROR_INVALID_VALUE;
  value = found->second;
  return CUDA_SUCCESS;
}

void Devices::set_attribute(int attribute, int value) {
  const std::lock_guard lock(mutex_);
  attributes_[attribute] = value;
}

std::vector<Context*>& context_stack() {
  thread_local std::vector<Context*> stack;
  return stack;
}

Context* current_context() { return context_stack().empty() ? nullptr : context_stack().back(); }

void arm_failure(const std::string& call, CUresult status, int passing) {
  const std::lock_guard lock(failures().mutex);
  failures().armed[call] = {status, passing};
}

CUresult take_failure(const std::string& call) {
  const std::lock_guard lock(failures().mutex);
  const auto found = failures().armed.find(call);
  if (found == failures().armed.end()) return CUDA_SUCCESS;
  auto& failure = found->second;
  const CUresult status = failure.status;
  if (failure.passing < 0) return status;
  if (failure.passing-- > 0) return CUDA_SUCCESS;
  failures().armed.erase(found);
  return status;
}

void forget_failures() {
  const std::lock_guard lock(failures().mutex);
  failures().armed.clear();
}

std::uint64_t armed_failures() {
  const std::lock_guard lock(failures().mutex);
  return failures().armed.size();
}

bool& is_in_host_function() {
  thread_local bool is_inside = false;
  return is_inside;
}

CUresult begin_call(const char* name, Needs needs) {
  if (is_in_host_function()) return CUDA_ERROR_NOT_PERMITTED;
  const CUresult failure = take_failure(name);
  if (failure != CUDA_SUCCESS || needs == Needs::kNothing) return failure;
  if (!Devices::all().is_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  if (needs == Needs::kDriver) return CUDA_SUCCESS;
  const Context* const current = current_context();
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return needs == Needs::kContextOnly ? CUDA_SUCCESS : current->error.load();
}

}  // namespace fake_cuda
