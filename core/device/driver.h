#pragma once
// Driver: the part of CUDA's driver API that is used here, loaded when it is first asked for.
//
// Nothing of CUDA is needed to build or to start: its library comes with the GPU's driver.

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/result.h"

namespace infinistore {

// As in cuda.h.
using CuStatus = int;
using CuDevice = int;
using CuContext = struct CUctx_st*;
using CuStream = struct CUstream_st*;
using CuEvent = struct CUevent_st*;
using CuModule = struct CUmod_st*;
using CuFunction = struct CUfunc_st*;
using CuAddress = std::uint64_t;
using CuHostFunction = void (*)(void* data);

inline constexpr CuStatus kCuSuccess = 0;
inline constexpr CuStatus kCuInvalidValue = 1;
inline constexpr CuStatus kCuNotReady = 600;

// As in cuda.h: how the copies of one call see their sources, and where they go.
struct CuCopyAttributes {
  int source_order = 1;  // as the stream is
  int source_hint[2] = {};
  int target_hint[2] = {};
  unsigned flags = 0;
};

struct Driver {
  CuStatus (*init)(unsigned flags);
  CuStatus (*error_name)(CuStatus status, const char** name);
  CuStatus (*device_count)(int* count);
  CuStatus (*device_get)(CuDevice* device, int ordinal);
  CuStatus (*device_attribute)(int* value, int attribute, CuDevice device);
  CuStatus (*primary_context)(CuContext* context, CuDevice device);
  CuStatus (*push_context)(CuContext context);
  CuStatus (*pop_context)(CuContext* context);
  CuStatus (*stream_priorities)(int* least, int* greatest);
  CuStatus (*stream_create)(CuStream* stream, unsigned flags, int priority);
  CuStatus (*stream_synchronize)(CuStream stream);
  CuStatus (*stream_wait_event)(CuStream stream, CuEvent event, unsigned flags);
  CuStatus (*event_create)(CuEvent* event, unsigned flags);
  CuStatus (*event_destroy)(CuEvent event);
  CuStatus (*event_record)(CuEvent event, CuStream stream);
  CuStatus (*event_query)(CuEvent event);
  CuStatus (*event_synchronize)(CuEvent event);
  CuStatus (*launch_host_function)(CuStream stream, CuHostFunction function, void* data);
  CuStatus (*launch_kernel)(CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared_bytes, CuStream stream, void** parameters,
                            void** extra);
  CuStatus (*module_load)(CuModule* module, const void* image);
  CuStatus (*module_function)(CuFunction* function, CuModule module, const char* name);
  CuStatus (*copy_to_host)(void* to, CuAddress from, std::size_t bytes, CuStream stream);
  // nullptr: this driver has none (before 570).
  CuStatus (*copy_batch)(CuAddress* to, CuAddress* from, std::size_t* bytes, std::size_t count,
                         CuCopyAttributes* attributes, std::size_t* attribute_firsts,
                         std::size_t attribute_count, std::size_t* failed, CuStream stream);
  CuStatus (*host_alloc)(void** memory, std::size_t bytes, unsigned flags);
  CuStatus (*host_free)(void* memory);
  CuStatus (*host_register)(void* memory, std::size_t bytes, unsigned flags);
  CuStatus (*host_unregister)(void* memory);
  CuStatus (*pointer_attribute)(void* value, int attribute, CuAddress address);

  // "CUDA_ERROR_INVALID_VALUE (1)".
  std::string describe(CuStatus status) const;
};

// kSetup: this machine has none, or too old a one, and what to do.  Loads once; any thread.
Result<const Driver*> load_driver();

}  // namespace infinistore
