#include "core/device/driver.h"

#include <dlfcn.h>

#include <cstdlib>

namespace infinistore {
namespace {

Error missing(const std::string& why) {
  return {Code::kSetup, "CUDA cannot be used: " + why +
                            "; install the NVIDIA driver (520 or newer), or give "
                            "memory of the host"};
}

template <class Function>
bool find(void* library, const char* name, Function& function, std::string& missing_name) {
  void* const symbol = ::dlsym(library, name);
  function = reinterpret_cast<Function>(symbol);
  if (symbol == nullptr && missing_name.empty()) missing_name = name;
  return symbol != nullptr;
}

// The name of the first call that is not there; empty: all are.
std::string find_all(void* library, Driver& driver) {
  std::string lacks;
  find(library, "cuInit", driver.init, lacks);
  find(library, "cuGetErrorName", driver.error_name, lacks);
  find(library, "cuDeviceGetCount", driver.device_count, lacks);
  find(library, "cuDeviceGet", driver.device_get, lacks);
  find(library, "cuDeviceGetAttribute", driver.device_attribute, lacks);
  find(library, "cuDevicePrimaryCtxRetain", driver.primary_context, lacks);
  find(library, "cuCtxPushCurrent_v2", driver.push_context, lacks);
  find(library, "cuCtxPopCurrent_v2", driver.pop_context, lacks);
  find(library, "cuCtxGetStreamPriorityRange", driver.stream_priorities, lacks);
  find(library, "cuStreamCreateWithPriority", driver.stream_create, lacks);
  find(library, "cuStreamSynchronize", driver.stream_synchronize, lacks);
  find(library, "cuStreamWaitEvent", driver.stream_wait_event, lacks);
  find(library, "cuEventCreate", driver.event_create, lacks);
  find(library, "cuEventDestroy_v2", driver.event_destroy, lacks);
  find(library, "cuEventRecord", driver.event_record, lacks);
  find(library, "cuEventQuery", driver.event_query, lacks);
  find(library, "cuEventSynchronize", driver.event_synchronize, lacks);
  find(library, "cuLaunchHostFunc", driver.launch_host_function, lacks);
  find(library, "cuLaunchKernel", driver.launch_kernel, lacks);
  find(library, "cuModuleLoadData", driver.module_load, lacks);
  find(library, "cuModuleGetFunction", driver.module_function, lacks);
  find(library, "cuMemcpyDtoHAsync_v2", driver.copy_to_host, lacks);
  std::string may_lack;
  find(library, "cuMemcpyBatchAsync", driver.copy_batch, may_lack);
  find(library, "cuMemHostAlloc", driver.host_alloc, lacks);
  find(library, "cuMemFreeHost", driver.host_free, lacks);
  find(library, "cuMemHostRegister_v2", driver.host_register, lacks);
  find(library, "cuMemHostUnregister", driver.host_unregister, lacks);
  find(library, "cuPointerGetAttribute", driver.pointer_attribute, lacks);
  return lacks;
}

Result<const Driver*> load() {
  const char* const chosen = std::getenv("INFINISTORE_CUDA_LIBRARY");
  const char* const name = chosen != nullptr && *chosen != '\0' ? chosen : "libcuda.so.1";
  void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return missing(::dlerror());
  static Driver driver;
  const auto lacks = find_all(library, driver);
  if (!lacks.empty()) return missing(std::string(name) + " has no " + lacks);
  const CuStatus status = driver.init(0);
  if (status != kCuSuccess) return missing("cuInit says " + driver.describe(status));
  return &driver;
}

}  // namespace

std::string Driver::describe(CuStatus status) const {
  const char* name = nullptr;
  if (error_name(status, &name) != kCuSuccess || name == nullptr) name = "an unknown error";
  return std::string(name) + " (" + std::to_string(status) + ")";
}

Result<const Driver*> load_driver() {
  static const Result<const Driver*> loaded = load();
  return loaded;
}

}  // namespace infinistore
