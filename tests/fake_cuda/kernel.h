#pragma once
// The kernels of core/device/copy_tiles.cu, done by the CPU from docs/protocol.md section 6 alone.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fake_cuda/stream.h"

namespace fake_cuda {

struct Kernel {
  std::string name;
  bool to_host = false;
  bool sums = false;
  bool moves = true;
};

// As in copy_tiles.cu.
struct Tile {
  std::uint64_t device;
  std::uint64_t host;
  std::uint64_t position;
  std::uint32_t bytes;
  std::uint32_t unused;
};
static_assert(sizeof(Tile) == 32);

struct Launch {
  const Tile* tiles = nullptr;
  std::uint64_t* results = nullptr;
  std::uint32_t count = 0;
};

// nullptr: copy_tiles.cu has none of that name.
const Kernel* find_kernel(const std::string& name);

// On the stream's thread: waits while a test holds it, then runs; what a GPU could not touch ends
// its context.
void run_kernel(const Kernel& kernel, const Launch& launch, Stream& stream);

// Ends a context as a kernel's failure does, and says so.
void break_context(Context& context, CUresult error, const std::string& why);

// ---- a test's knobs ----

// nullptr: of all streams.
void hold_kernels(const Stream* stream, bool holds);
void delay_kernels(std::uint64_t delay_us);
void release_kernels();

struct KernelCounts {
  std::uint64_t launches = 0;  // that ran to their end
  std::uint64_t tiles = 0;
  std::uint64_t bytes_to_host = 0;
  std::uint64_t bytes_to_device = 0;
  std::uint64_t waiting = 0;  // held or delayed now
  std::uint64_t faults = 0;
};
KernelCounts kernel_counts();

}  // namespace fake_cuda
