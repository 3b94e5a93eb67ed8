#pragma once
// Memory as a GPU sees it: its own, and the host's that is pinned or registered.
//
// The addresses of a device's memory are mapped without any right, so that a host that touches them
// crashes; the double's kernels use a second mapping of the same bytes.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <shared_mutex>

#include "tests/fake_cuda/context.h"

namespace fake_cuda {

struct DeviceRange {
  Context* context = nullptr;
  std::size_t bytes = 0;
  std::byte* writable = nullptr;  // the same bytes, for the double
};

struct HostRange {
  const Context* context = nullptr;
  std::size_t bytes = 0;
  bool is_portable = false;  // every context sees it
  bool is_pinned = false;    // from cuMemHostAlloc; else registered
};

struct MemoryTotals {
  std::uint64_t device_bytes = 0;
  std::uint64_t pinned_bytes = 0;
  std::uint64_t pinned_ranges = 0;
  std::uint64_t registered_bytes = 0;
  std::uint64_t registered_ranges = 0;
};

class Memory {
 public:
  static Memory& all();

  CUresult allocate(Context& context, std::size_t bytes, std::uintptr_t& address);
  CUresult free(std::uintptr_t address);
  CUresult allocate_host(const Context& context, std::size_t bytes, bool is_portable,
                         void** memory);
  CUresult free_host(void* memory);
  // As CUDA: what is mapped for reading can only be registered so.
  CUresult register_host(const Context& context, void* memory, std::size_t bytes, bool is_portable,
                         bool is_read_only);
  CUresult unregister_host(void* memory);

  // What cuPointerGetAttribute tells.
  CUresult attribute(std::uintptr_t address, int attribute, void* value);
  MemoryTotals totals();

  // While a kernel has it no memory goes away: what takes some away waits, as in CUDA.
  class View {
   public:
    explicit View(Memory& memory) : memory_(memory), lock_(memory.mutex_) {}
    // Where the double finds a range of a device's memory; nullptr: `context` may not use it all.
    std::byte* device(const Context& context, std::uintptr_t address, std::size_t bytes) const;
    std::byte* host(const Context& context, std::uintptr_t address, std::size_t bytes) const;

   private:
    Memory& memory_;
    std::shared_lock<std::shared_mutex> lock_;
  };

 private:
  using HostRanges = std::map<std::uintptr_t, HostRange>;
  using DeviceRanges = std::map<std::uintptr_t, DeviceRange>;
  bool overlaps_locked(std::uintptr_t address, std::size_t bytes) const;

  std::shared_mutex mutex_;
  DeviceRanges device_;
  HostRanges host_;
};

}  // namespace fake_cuda
