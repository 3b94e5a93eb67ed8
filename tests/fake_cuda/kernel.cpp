#include "tests/fake_cuda/kernel.h"

#include <array>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <thread>

#include "tests/fake_cuda/memory.h"

namespace fake_cuda {
namespace {

constexpr std::uint32_t kWordBytes = 8;

// Under the Timeline's mutex.
struct Knobs {
  bool holds_all = false;
  std::set<const Stream*> held;
  std::uint64_t delay_us = 0;
  KernelCounts counts;
};

Knobs& knobs() {
  static Knobs& all = *std::make_unique<Knobs>().release();
  return all;
}

std::uint64_t word_at(std::span<const std::byte> bytes) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < bytes.size() && i < kWordBytes; ++i) {
    word |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  }
  return word;
}

// docs/protocol.md section 6, word by word.  core/base/checksum.h shall be able to disagree.
std::uint64_t sum_of(std::span<const std::byte> bytes, std::uint64_t position) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < bytes.size(); at += kWordBytes) {
    const std::uint64_t word = word_at(bytes.subspan(at));
    const std::uint64_t key = (position + at + 1) * 0x9E3779B97F4A7C15;
    const std::uint64_t x = word ^ key;
    sum += (x % 0x100000000) * (x / 0x100000000) + std::rotl(word, 32);
  }
  return sum;
}

std::string hex(std::uint64_t number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(number));
  return text.data();
}

std::string range_text(std::uint64_t address, std::uint64_t bytes) {
  return hex(address) + " + " + std::to_string(bytes);
}

struct Outcome {
  CUresult error = CUDA_SUCCESS;
  std::string why;
};

Outcome copy_tile(const Kernel& kernel, const Launch& launch, std::uint32_t index,
                  const Memory::View& memory, const Context& context) {
  const Tile tile = launch.tiles[index];
  const std::string which = kernel.name + ", tile " + std::to_string(index) + ": ";
  if (tile.bytes == 0 || (tile.bytes > kWordBytes && tile.bytes % kWordBytes != 0)) {
    return {CUDA_ERROR_LAUNCH_FAILED, which + "its length is " + std::to_string(tile.bytes)};
  }
  std::byte* const device = memory.device(context, tile.device, tile.bytes);
  if (device == nullptr) {
    return {CUDA_ERROR_ILLEGAL_ADDRESS,
            which + "no memory of this device: " + range_text(tile.device, tile.bytes)};
  }
  std::byte* const host = memory.host(context, tile.host, tile.bytes);
  if (host == nullptr) {
    return {CUDA_ERROR_ILLEGAL_ADDRESS,
            which + "no registered memory: " + range_text(tile.host, tile.bytes)};
  }
  std::byte* const to = kernel.to_host ? host : device;
  const std::byte* const from = kernel.to_host ? device : host;
  if (kernel.moves) std::memcpy(to, from, tile.bytes);
  if (!kernel.sums) return {};
  const std::span<const std::byte> seen(kernel.moves ? to : from, tile.bytes);
  launch.results[index] = tile.bytes < kWordBytes ? word_at(seen) : sum_of(seen, tile.position);
  return {};
}

Outcome copy_all(const Kernel& kernel, const Launch& launch, const Context& context,
                 KernelCounts& counts) {
  const Memory::View memory(Memory::all());
  const auto tiles_at = reinterpret_cast<std::uintptr_t>(launch.tiles);
  const auto results_at = reinterpret_cast<std::uintptr_t>(launch.results);
  if (memory.host(context, tiles_at, launch.count * sizeof(Tile)) == nullptr) {
    return {CUDA_ERROR_ILLEGAL_ADDRESS, kernel.name + ": its tiles are in no pinned memory"};
  }
  if (kernel.sums &&
      memory.host(context, results_at, launch.count * sizeof(std::uint64_t)) == nullptr) {
    return {CUDA_ERROR_ILLEGAL_ADDRESS, kernel.name + ": its results are in no pinned memory"};
  }
  for (std::uint32_t i = 0; i < launch.count; ++i) {
    auto outcome = copy_tile(kernel, launch, i, memory, context);
    if (outcome.error != CUDA_SUCCESS) return outcome;
    (kernel.to_host ? counts.bytes_to_host : counts.bytes_to_device) += launch.tiles[i].bytes;
    ++counts.tiles;
  }
  return {};
}

void wait_as_told(const Stream& stream) {
  auto& timeline = Timeline::all();
  std::uint64_t delay_us = 0;
  timeline.change([&] {
    ++knobs().counts.waiting;
    delay_us = knobs().delay_us;
  });
  timeline.hold_until(stream,
                      [&] { return !knobs().holds_all && !knobs().held.contains(&stream); });
  std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
  timeline.change([&] { --knobs().counts.waiting; });
}

}  // namespace

const Kernel* find_kernel(const std::string& name) {
  static const std::array<Kernel, 5>& kernels =
      *std::make_unique<std::array<Kernel, 5>>(std::array<Kernel, 5>{{
                                                   {"tiles_to_host", true, false, true},
                                                   {"tiles_to_host_summed", true, true, true},
                                                   {"tiles_to_device", false, false, true},
                                                   {"tiles_to_device_summed", false, true, true},
                                                   {"tiles_sums", true, true, false},
                                               }})
           .release();
  for (const auto& kernel : kernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

void run_kernel(const Kernel& kernel, const Launch& launch, Stream& stream) {
  wait_as_told(stream);
  auto& context = stream.context;
  if (context.error != CUDA_SUCCESS) return;
  const CUresult wanted = take_failure("kernel");
  if (wanted != CUDA_SUCCESS) {
    break_context(context, wanted, kernel.name + ": a test wants it to fail");
    return;
  }
  KernelCounts counts{.launches = 1};
  const auto outcome = copy_all(kernel, launch, context, counts);
  if (outcome.error != CUDA_SUCCESS) {
    Timeline::all().change([] { ++knobs().counts.faults; });
    break_context(context, outcome.error, outcome.why);
    return;
  }
  Timeline::all().change([&] {
    auto& all = knobs().counts;
    all.launches += counts.launches;
    all.tiles += counts.tiles;
    all.bytes_to_host += counts.bytes_to_host;
    all.bytes_to_device += counts.bytes_to_device;
  });
}

void break_context(Context& context, CUresult error, const std::string& why) {
  std::fprintf(stderr, "fake_cuda: device %d: %s (%d)\n", context.device, why.c_str(),
               static_cast<int>(error));
  Timeline::all().change([&] { context.error = error; });
}

void hold_kernels(const Stream* stream, bool holds) {
  Timeline::all().change([&] {
    if (stream == nullptr) {
      knobs().holds_all = holds;
    } else if (holds) {
      knobs().held.insert(stream);
    } else {
      knobs().held.erase(stream);
    }
  });
}

void delay_kernels(std::uint64_t delay_us) {
  Timeline::all().change([&] { knobs().delay_us = delay_us; });
}

void release_kernels() {
  Timeline::all().change([] {
    knobs().holds_all = false;
    knobs().held.clear();
    knobs().delay_us = 0;
  });
}

KernelCounts kernel_counts() {
  KernelCounts counts;
  Timeline::all().change([&] { counts = knobs().counts; });
  return counts;
}

}  // namespace fake_cuda
