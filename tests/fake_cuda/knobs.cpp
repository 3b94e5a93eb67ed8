// What tests ask of the double beside CUDA's functions: to wait, to be slow, to fail, to count.
//
// Called through ctypes (tests/fake_driver.py), so with C linkage and plain types.

#include <cstring>
#include <memory>
#include <set>
#include <string_view>

#include "tests/fake_cuda/kernel.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/stream.h"

#define FAKE_CUDA_API extern "C" __attribute__((visibility("default")))

namespace fake_cuda {
namespace {

constexpr std::uint64_t kWordBytes = 8;

// Under the Timeline's mutex.
struct Tickets {
  std::set<std::uint64_t> released;
  std::uint64_t resets = 0;
  std::uint64_t waiting = 0;
};

Tickets& tickets() {
  static Tickets& all = *std::make_unique<Tickets>().release();
  return all;
}

std::uint64_t resets_now() {
  std::uint64_t resets = 0;
  Timeline::all().change([&] { resets = tickets().resets; });
  return resets;
}

// The byte at `index` of the pattern of `seed`: tests/fake_driver.py computes the same.
std::byte pattern_at(std::uint64_t index, std::uint64_t seed) {
  std::uint64_t word = (index / kWordBytes + 1 + (seed << 32)) * 0xD6E8FEB86659FD93;
  word ^= word >> 32;
  word *= 0xD6E8FEB86659FD93;
  return static_cast<std::byte>(word >> (8 * (index % kWordBytes)) & 0xFF);
}

void fill(Context& context, std::uint64_t address, std::uint64_t bytes, std::uint64_t seed) {
  std::byte* found = nullptr;
  {
    const Memory::View memory(Memory::all());
    found = memory.device(context, address, bytes);
    for (std::uint64_t i = 0; found != nullptr && i < bytes; ++i) found[i] = pattern_at(i, seed);
  }
  if (found == nullptr) break_context(context, CUDA_ERROR_ILLEGAL_ADDRESS, "a fill of no memory");
}

// In the order of a stream; the calling thread's context is that of the default ones.
CUresult enqueue(CUstream handle, std::function<void(Stream&)> run) {
  Stream* const stream = Timeline::all().find_stream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Timeline::all().submit(*stream, {.run = std::move(run), .after = {}});
  return CUDA_SUCCESS;
}

std::uint64_t tickets_waiting() {
  std::uint64_t waiting = 0;
  Timeline::all().change([&] { waiting = tickets().waiting; });
  return waiting;
}

}  // namespace
}  // namespace fake_cuda

using fake_cuda::Stream;
using fake_cuda::Timeline;

// Holds the kernels of a stream, or with nullptr all, until it is called with false.
FAKE_CUDA_API void fake_cuda_hold(CUstream stream, bool holds) {
  fake_cuda::hold_kernels(reinterpret_cast<const Stream*>(stream), holds);
}

// Each kernel takes so much longer.
FAKE_CUDA_API void fake_cuda_delay_us(std::uint64_t delay_us) {
  fake_cuda::delay_kernels(delay_us);
}

// `passing` calls of that name do as they should, and the one after them fails; negative: all fail.
// "kernel": not the launch, but the kernel itself, and with it all of its context.
FAKE_CUDA_API void fake_cuda_fail(const char* call, int status, int passing) {
  fake_cuda::arm_failure(call, static_cast<CUresult>(status), passing);
}

// As a kernel of the caller's own would that fails.
FAKE_CUDA_API void fake_cuda_break(int device, int status) {
  auto* const context = fake_cuda::Devices::all().primary(device);
  if (context == nullptr) return;
  fake_cuda::break_context(*context, static_cast<CUresult>(status), "a test breaks it");
}

FAKE_CUDA_API void fake_cuda_set_attribute(int attribute, int value) {
  fake_cuda::Devices::all().set_attribute(attribute, value);
}

// Work of the caller's that lasts until its ticket is released.
FAKE_CUDA_API int fake_cuda_enqueue_wait(CUstream handle, std::uint64_t ticket) {
  const std::uint64_t resets = fake_cuda::resets_now();
  return static_cast<int>(fake_cuda::enqueue(handle, [ticket, resets](Stream& stream) {
    auto& all = fake_cuda::tickets();
    Timeline::all().change([&] { ++all.waiting; });
    Timeline::all().hold_until(
        stream, [&] { return all.released.contains(ticket) || all.resets != resets; });
    Timeline::all().change([&] { --all.waiting; });
  }));
}

FAKE_CUDA_API void fake_cuda_release(std::uint64_t ticket) {
  Timeline::all().change([&] { fake_cuda::tickets().released.insert(ticket); });
}

// Writes a pattern in a stream's order.
FAKE_CUDA_API int fake_cuda_enqueue_fill(CUstream handle, CUdeviceptr address, std::uint64_t bytes,
                                         std::uint64_t seed) {
  return static_cast<int>(fake_cuda::enqueue(handle, [address, bytes, seed](Stream& stream) {
    fake_cuda::fill(stream.context, address, bytes, seed);
  }));
}

// ~0: there is no counter of that name.
FAKE_CUDA_API std::uint64_t fake_cuda_counter(const char* name) {
  const auto kernels = fake_cuda::kernel_counts();
  const auto memory = fake_cuda::Memory::all().totals();
  const struct {
    std::string_view name;
    std::uint64_t value;
  } counters[] = {
      {"launches", kernels.launches},
      {"tiles", kernels.tiles},
      {"bytes_to_host", kernels.bytes_to_host},
      {"bytes_to_device", kernels.bytes_to_device},
      {"kernels_waiting", kernels.waiting},
      {"faults", kernels.faults},
      {"armed_failures", fake_cuda::armed_failures()},
      {"tickets_waiting", fake_cuda::tickets_waiting()},
      {"registered_bytes", memory.registered_bytes},
      {"registered_ranges", memory.registered_ranges},
      {"pinned_bytes", memory.pinned_bytes},
      {"pinned_ranges", memory.pinned_ranges},
      {"device_bytes", memory.device_bytes},
      {"live_events", Timeline::all().live_events()},
      {"live_streams", Timeline::all().live_streams()},
  };
  for (const auto& counter : counters) {
    if (counter.name == name) return counter.value;
  }
  return ~std::uint64_t{0};
}

// Forgets all that tests have asked for, lets every stream end its work, and heals the contexts.
FAKE_CUDA_API void fake_cuda_reset() {
  fake_cuda::forget_failures();
  fake_cuda::release_kernels();
  Timeline::all().change([] { ++fake_cuda::tickets().resets; });
  Timeline::all().drain();
  Timeline::all().change([] {
    fake_cuda::tickets().released.clear();
    for (auto* const context : fake_cuda::Devices::all().contexts()) {
      context->error = CUDA_SUCCESS;
    }
  });
}
