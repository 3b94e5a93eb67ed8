// The functions of libcuda.so.1 that core/device/driver.cpp looks up, and those that tests need.

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fake_cuda/kernel.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/stream.h"

#define FAKE_CUDA_API extern "C" __attribute__((visibility("default")))

namespace fake_cuda {
namespace {

constexpr unsigned kBlocksMax = 16;
constexpr unsigned kThreadsMax = 1024;
constexpr unsigned kWarpThreads = 32;

struct Module {
  Context& context;
  std::string image;
};

struct Function {
  Context& context;
  const Kernel& kernel;
};

struct Modules {
  std::mutex mutex;
  std::vector<std::unique_ptr<Module>> modules;
  std::vector<std::unique_ptr<Function>> functions;
};

Modules& modules() {
  static Modules& all = *std::make_unique<Modules>().release();
  return all;
}

template <class Handle, class Owned>
Owned* find_in(const std::vector<std::unique_ptr<Owned>>& all, Handle handle) {
  for (const auto& owned : all) {
    if (reinterpret_cast<Handle>(owned.get()) == handle) return owned.get();
  }
  return nullptr;
}

// Behind comments and empty lines PTX begins with its version.
bool is_ptx(std::string_view image) {
  while (!image.empty()) {
    const auto end = image.find('\n');
    const auto line = image.substr(0, end);
    if (!line.empty() && !line.starts_with("//")) return line.starts_with(".version ");
    image = end == std::string_view::npos ? std::string_view() : image.substr(end + 1);
  }
  return false;
}

// Does `action` with a stream, unless there is none such or its context has failed.
template <class Action>
CUresult with_stream(CUstream handle, Action action) {
  Stream* const stream = Timeline::all().find_stream(handle);
  if (stream == nullptr) {
    return current_context() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
  }
  const CUresult error = stream->context.error;
  return error == CUDA_SUCCESS ? action(*stream) : error;
}

template <class Action>
CUresult with_event(CUevent handle, Action action) {
  Event* const event = Timeline::all().find_event(handle);
  return event == nullptr ? CUDA_ERROR_INVALID_HANDLE : action(*event);
}

void call_host_function(CUhostFn function, void* data) {
  is_in_host_function() = true;
  function(data);
  is_in_host_function() = false;
}

// A copy between a device's memory and the host's, in the order of the default stream.
CUresult copy_now(CUdeviceptr device, std::size_t bytes, void* to_host, const void* from_host) {
  return with_stream(nullptr, [&](Stream& stream) {
    CUresult outcome = CUDA_SUCCESS;
    const auto copy = [&](Stream&) {
      const Memory::View memory(Memory::all());
      std::byte* const found = memory.device(stream.context, device, bytes);
      if (found == nullptr) {
        outcome = CUDA_ERROR_INVALID_VALUE;
      } else if (to_host != nullptr) {
        std::memcpy(to_host, found, bytes);
      } else {
        std::memcpy(found, from_host, bytes);
      }
    };
    Timeline::all().submit(stream, {.run = copy, .after = {}});
    const CUresult error = Timeline::all().synchronize(stream);
    return error == CUDA_SUCCESS ? outcome : error;
  });
}

}  // namespace
}  // namespace fake_cuda

using namespace std::literals;
using fake_cuda::call;
using fake_cuda::Context;
using fake_cuda::context_stack;
using fake_cuda::current_context;
using fake_cuda::Devices;
using fake_cuda::Event;
using fake_cuda::Memory;
using fake_cuda::Needs;
using fake_cuda::Stream;
using fake_cuda::Timeline;
using fake_cuda::with_event;
using fake_cuda::with_stream;

// ---- the driver, devices and contexts ----

FAKE_CUDA_API CUresult cuInit(unsigned flags) {
  return call(__func__, Needs::kNothing,
              [&] { return flags == 0 ? Devices::all().initialize() : CUDA_ERROR_INVALID_VALUE; });
}

FAKE_CUDA_API CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = nullptr;
  switch (error) {
#define FAKE_CUDA_NAME(constant) \
  case constant:                 \
    *name = #constant;           \
    return CUDA_SUCCESS
    FAKE_CUDA_NAME(CUDA_SUCCESS);
    FAKE_CUDA_NAME(CUDA_ERROR_INVALID_VALUE);
    FAKE_CUDA_NAME(CUDA_ERROR_OUT_OF_MEMORY);
    FAKE_CUDA_NAME(CUDA_ERROR_NOT_INITIALIZED);
    FAKE_CUDA_NAME(CUDA_ERROR_NO_DEVICE);
    FAKE_CUDA_NAME(CUDA_ERROR_INVALID_DEVICE);
    FAKE_CUDA_NAME(CUDA_ERROR_INVALID_IMAGE);
    FAKE_CUDA_NAME(CUDA_ERROR_INVALID_CONTEXT);
    FAKE_CUDA_NAME(CUDA_ERROR_INVALID_PTX);
    FAKE_CUDA_NAME(CUDA_ERROR_INVALID_HANDLE);
    FAKE_CUDA_NAME(CUDA_ERROR_NOT_FOUND);
    FAKE_CUDA_NAME(CUDA_ERROR_NOT_READY);
    FAKE_CUDA_NAME(CUDA_ERROR_ILLEGAL_ADDRESS);
    FAKE_CUDA_NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    FAKE_CUDA_NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    FAKE_CUDA_NAME(CUDA_ERROR_LAUNCH_FAILED);
    FAKE_CUDA_NAME(CUDA_ERROR_NOT_PERMITTED);
#undef FAKE_CUDA_NAME
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

FAKE_CUDA_API CUresult cuDeviceGetCount(int* count) {
  return call(__func__, Needs::kDriver, [&] {
    *count = Devices::all().count();
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return call(__func__, Needs::kDriver, [&] {
    if (Devices::all().primary(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                            CUdevice device) {
  return call(__func__, Needs::kDriver, [&] {
    if (Devices::all().primary(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    return Devices::all().attribute(static_cast<int>(attribute), *value);
  });
}

FAKE_CUDA_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return call(__func__, Needs::kDriver, [&] {
    Context* const found = Devices::all().primary(device);
    if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *context = fake_cuda::handle_of(found);
    return CUDA_SUCCESS;
  });
}

// Also makes it current.
FAKE_CUDA_API CUresult cuCtxCreate_v2(CUcontext* context, unsigned, CUdevice device) {
  return call(__func__, Needs::kDriver, [&] {
    Context* const made = Devices::all().make(device);
    if (made == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    *context = fake_cuda::handle_of(made);
    context_stack().push_back(made);
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
  return call(__func__, Needs::kDriver, [&] {
    Context* const found = Devices::all().find(context);
    if (found == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack().push_back(found);
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  return call(__func__, Needs::kDriver, [&] {
    if (context_stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context != nullptr) *context = fake_cuda::handle_of(current_context());
    context_stack().pop_back();
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_API CUresult cuCtxGetCurrent(CUcontext* context) {
  return call(__func__, Needs::kDriver, [&] {
    *context = fake_cuda::handle_of(current_context());
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call(__func__, Needs::kContext, [&] {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return CUDA_SUCCESS;
  });
}

// ---- streams and events ----

FAKE_CUDA_API CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
  return call(__func__, Needs::kContext, [&] {
    if (flags > fake_cuda::kStreamNonBlocking) return CUDA_ERROR_INVALID_VALUE;
    *stream = reinterpret_cast<CUstream>(Timeline::all().make_stream(*current_context(), flags));
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_API CUresult cuStreamDestroy_v2(CUstream stream) {
  return call(__func__, Needs::kContextOnly,
              [&] { return Timeline::all().destroy_stream(stream); });
}

FAKE_CUDA_API CUresult cuStreamSynchronize(CUstream handle) {
  return call(__func__, Needs::kContext, [&] {
    return with_stream(handle, [](Stream& stream) { return Timeline::all().synchronize(stream); });
  });
}

FAKE_CUDA_API CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned) {
  return call(__func__, Needs::kContext, [&] {
    return with_event(event_handle, [&](Event& event) {
      return with_stream(handle, [&](Stream& stream) {
        Timeline::all().wait_for(stream, event);
        return CUDA_SUCCESS;
      });
    });
  });
}

FAKE_CUDA_API CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return call(__func__, Needs::kContext, [&] {
    if ((flags & ~fake_cuda::kEventFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    *event = reinterpret_cast<CUevent>(Timeline::all().make_event(*current_context()));
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_API CUresult cuEventDestroy_v2(CUevent event) {
  return call(__func__, Needs::kContextOnly, [&] { return Timeline::all().destroy_event(event); });
}

FAKE_CUDA_API CUresult cuEventRecord(CUevent event_handle, CUstream handle) {
  return call(__func__, Needs::kContext, [&] {
    return with_event(event_handle, [&](Event& event) {
      return with_stream(handle, [&](Stream& stream) {
        if (&event.context != &stream.context) return CUDA_ERROR_INVALID_HANDLE;
        Timeline::all().record(event, stream);
        return CUDA_SUCCESS;
      });
    });
  });
}

FAKE_CUDA_API CUresult cuEventQuery(CUevent handle) {
  return call(__func__, Needs::kDriver, [&] {
    return with_event(handle, [](Event& event) { return Timeline::all().query(event); });
  });
}

FAKE_CUDA_API CUresult cuEventSynchronize(CUevent handle) {
  return call(__func__, Needs::kContext, [&] {
    return with_event(handle, [](Event& event) { return Timeline::all().synchronize(event); });
  });
}

FAKE_CUDA_API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  return call(__func__, Needs::kContext, [&] {
    return with_stream(handle, [&](Stream& stream) {
      const auto run = [function, data](Stream&) { fake_cuda::call_host_function(function, data); };
      Timeline::all().submit(stream, {.run = run, .after = {}});
      return CUDA_SUCCESS;
    });
  });
}

// ---- kernels ----

FAKE_CUDA_API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return call(__func__, Needs::kContext, [&] {
    const std::string text(static_cast<const char*>(image));
    if (!fake_cuda::is_ptx(text)) return CUDA_ERROR_INVALID_IMAGE;
    auto& all = fake_cuda::modules();
    const std::lock_guard lock(all.mutex);
    all.modules.push_back(std::make_unique<fake_cuda::Module>(
        fake_cuda::Module{.context = *current_context(), .image = text}));
    *module = reinterpret_cast<CUmodule>(all.modules.back().get());
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_API CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle,
                                           const char* name) {
  return call(__func__, Needs::kContext, [&] {
    auto& all = fake_cuda::modules();
    const std::lock_guard lock(all.mutex);
    const auto* const module = fake_cuda::find_in(all.modules, handle);
    if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const fake_cuda::Kernel* const kernel = fake_cuda::find_kernel(name);
    const bool is_there = module->image.find(".visible .entry "s + name + "(") != std::string::npos;
    if (kernel == nullptr || !is_there) return CUDA_ERROR_NOT_FOUND;
    all.functions.push_back(std::make_unique<fake_cuda::Function>(
        fake_cuda::Function{.context = module->context, .kernel = *kernel}));
    *function = reinterpret_cast<CUfunction>(all.functions.back().get());
    return CUDA_SUCCESS;
  });
}

FAKE_CUDA_API CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y,
                                      unsigned grid_z, unsigned block_x, unsigned block_y,
                                      unsigned block_z, unsigned shared_bytes, CUstream stream,
                                      void** parameters, void** extra) {
  return call(__func__, Needs::kContext, [&] {
    auto& all = fake_cuda::modules();
    const std::lock_guard lock(all.mutex);
    const auto* const function = fake_cuda::find_in(all.functions, handle);
    if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const bool is_flat = grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1;
    const bool is_sized = grid_x > 0 && grid_x <= fake_cuda::kBlocksMax && block_x > 0 &&
                          block_x <= fake_cuda::kThreadsMax &&
                          block_x % fake_cuda::kWarpThreads == 0;
    if (!is_flat || !is_sized || shared_bytes != 0 || parameters == nullptr || extra != nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return with_stream(stream, [&](Stream& on) {
      if (&on.context != &function->context || &on.context != current_context()) {
        return CUDA_ERROR_INVALID_HANDLE;
      }
      fake_cuda::Launch launch;
      std::memcpy(&launch.tiles, parameters[0], sizeof launch.tiles);
      std::memcpy(&launch.results, parameters[1], sizeof launch.results);
      std::memcpy(&launch.count, parameters[2], sizeof launch.count);
      const auto& kernel = function->kernel;
      const auto run = [&kernel, launch](Stream& here) {
        fake_cuda::run_kernel(kernel, launch, here);
      };
      Timeline::all().submit(on, {.run = run, .after = {}});
      return CUDA_SUCCESS;
    });
  });
}

// ---- memory ----

FAKE_CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
  return call(__func__, Needs::kContext, [&] {
    std::uintptr_t made = 0;
    const CUresult status = Memory::all().allocate(*current_context(), bytes, made);
    *address = made;
    return status;
  });
}

FAKE_CUDA_API CUresult cuMemFree_v2(CUdeviceptr address) {
  return call(__func__, Needs::kContextOnly, [&] { return Memory::all().free(address); });
}

FAKE_CUDA_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  return call(__func__, Needs::kContext,
              [&] { return fake_cuda::copy_now(to, bytes, nullptr, from); });
}

FAKE_CUDA_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  return call(__func__, Needs::kContext,
              [&] { return fake_cuda::copy_now(from, bytes, to, nullptr); });
}

FAKE_CUDA_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                                            CUstream handle) {
  return call(__func__, Needs::kContext, [&] {
    return with_stream(handle, [&](Stream& stream) {
      const auto copy = [to, from, bytes](Stream& here) {
        std::byte* target = nullptr;
        {
          const Memory::View memory(Memory::all());
          target = memory.device(here.context, to, bytes);
          const std::byte* const source = memory.device(here.context, from, bytes);
          if (source == nullptr) target = nullptr;
          if (target != nullptr) std::memmove(target, source, bytes);
        }
        if (target == nullptr) {
          fake_cuda::break_context(here.context, CUDA_ERROR_ILLEGAL_ADDRESS,
                                   "a copy of freed memory");
        }
      };
      Timeline::all().submit(stream, {.run = copy, .after = {}});
      return CUDA_SUCCESS;
    });
  });
}

// A copy engine's; to memory that is pinned or registered, or it would be none.
FAKE_CUDA_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes,
                                            CUstream handle) {
  return call(__func__, Needs::kContext, [&] {
    return with_stream(handle, [&](Stream& stream) {
      const auto copy = [to, from, bytes](Stream& here) {
        const char* fault = nullptr;
        {
          const Memory::View memory(Memory::all());
          const auto to_at = reinterpret_cast<std::uintptr_t>(to);
          std::byte* const target = memory.host(here.context, to_at, bytes);
          const std::byte* const source = memory.device(here.context, from, bytes);
          if (source == nullptr) fault = "a copy engine's copy of freed memory";
          if (target == nullptr) fault = "a copy engine's copy to no registered memory";
          if (fault == nullptr) std::memcpy(target, source, bytes);
        }
        if (fault != nullptr) {
          fake_cuda::break_context(here.context, CUDA_ERROR_ILLEGAL_ADDRESS, fault);
        }
      };
      Timeline::all().submit(stream, {.run = copy, .after = {}});
      return CUDA_SUCCESS;
    });
  });
}

#ifndef FAKE_CUDA_520
FAKE_CUDA_API CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes,
                                          std::size_t count, const int* attributes,
                                          const std::size_t* attribute_firsts,
                                          std::size_t attribute_count, std::size_t* failed,
                                          CUstream handle) {
  return call(__func__, Needs::kContext, [&] {
    constexpr int kInStreamOrder = 1;
    const bool has_attributes =
        attribute_count == 1 && attributes[0] == kInStreamOrder && attribute_firsts[0] == 0;
    // No default stream, as CUDA has it.
    if (!has_attributes || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      *failed = i;
      const CUresult status =
          cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(to[i]), from[i], bytes[i], handle);
      if (status != CUDA_SUCCESS) return status;
    }
    return CUDA_SUCCESS;
  });
}
#endif

FAKE_CUDA_API CUresult cuMemHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  return call(__func__, Needs::kContext, [&] {
    const bool is_portable = (flags & fake_cuda::kHostPortable) != 0;
    return Memory::all().allocate_host(*current_context(), bytes, is_portable, memory);
  });
}

FAKE_CUDA_API CUresult cuMemFreeHost(void* memory) {
  return call(__func__, Needs::kContextOnly, [&] { return Memory::all().free_host(memory); });
}

FAKE_CUDA_API CUresult cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned flags) {
  return call(__func__, Needs::kContext, [&] {
    const bool is_portable = (flags & fake_cuda::kHostPortable) != 0;
    const bool is_read_only = (flags & fake_cuda::kHostReadOnly) != 0;
    return Memory::all().register_host(*current_context(), memory, bytes, is_portable,
                                       is_read_only);
  });
}

FAKE_CUDA_API CUresult cuMemHostUnregister(void* memory) {
  return call(__func__, Needs::kContextOnly, [&] { return Memory::all().unregister_host(memory); });
}

FAKE_CUDA_API CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute,
                                             CUdeviceptr address) {
  return call(__func__, Needs::kContext,
              [&] { return Memory::all().attribute(address, static_cast<int>(attribute), value); });
}
