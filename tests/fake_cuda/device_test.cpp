// core/device over the double of CUDA's driver, so that sanitizers see both sides of it.
//
// INFINISTORE_CUDA_LIBRARY names the double, which this program is linked with as well.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "core/base/checksum.h"
#include "core/base/poller.h"
#include "core/device/gate.h"
#include "core/device/gpu.h"
#include "core/device/registered_memory.h"
#include "core/device/tile_copy.h"
#include "tests/fake_cuda/double.h"

namespace infinistore {
namespace {

constexpr int kIllegalAddress = 700;

struct Bell final : Waker {
  void wake() noexcept override { ++rings; }
  std::atomic<int> rings = 0;
};

Gpu& gpu() {
  const auto found = Gpu::of(0);
  REQUIRE_MESSAGE(found.ok(), (found.ok() ? "" : found.error().message));
  return *found.value();
}

std::uint64_t address_of(const std::byte* data) { return reinterpret_cast<std::uintptr_t>(data); }

// Items of `size` bytes in all, cut at random places; their sums when done by the CPU.
struct Cut {
  Cut(std::uint64_t device, std::span<const std::byte> host, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::size_t done = 0; done < host.size();) {
      const std::size_t size = std::min<std::size_t>(1 + random() % 50'000, host.size() - done);
      const std::uint64_t position = random() % 5000;
      list.begin_item(position);
      items.push_back({done, size, position});
      for (std::size_t at = done; at < done + size;) {
        const std::size_t step = std::min<std::size_t>(1 + random() % 9000, done + size - at);
        list.add(device + at, address_of(host.data()) + at, step);
        at += step;
      }
      done += size;
    }
  }

  void check(std::span<const std::uint64_t> sums, std::span<const std::byte> bytes) const {
    REQUIRE(sums.size() == items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      const auto& item = items[i];
      CHECK(sums[i] == checksum_scalar(bytes.subspan(item.offset, item.size), item.position));
    }
  }

  struct Item {
    std::size_t offset;
    std::size_t size;
    std::uint64_t position;
  };
  TileList list;
  std::vector<Item> items;
};

Result<std::unique_ptr<TileCopy>> started(TileList tiles, Way way, Waker& waker,
                                          Mover mover = Mover::kMultiprocessors) {
  auto copy = TileCopy::prepare(gpu(), std::move(tiles));
  if (!copy) return copy.error();
  const auto error = mover == Mover::kCopyEngine ? copy.value()->launch_engine(waker)
                                                 : copy.value()->launch(way, true, waker);
  if (error.code != Code::kOk) return error;
  return std::move(*copy);
}

// One copy each way, and what it must be.
void move_there_and_back(std::uint64_t seed) {
  constexpr std::size_t kBytes = 300'000;
  const auto source = random_bytes(kBytes, seed);
  const DeviceBytes there(gpu(), source);
  auto memory = gpu().pinned(kBytes);
  REQUIRE(memory.ok());
  const std::span host(memory.value().data(), kBytes);
  std::ranges::fill(host, std::byte{0});
  Bell bell;
  for (const Way way : {Way::kToHost, Way::kToDevice}) {
    Cut cut(there.address(), host, seed + 1);
    const bool by_engine = way == Way::kToHost && seed % 2 == 1;
    const auto copy =
        started(cut.list, way, bell, by_engine ? Mover::kCopyEngine : Mover::kMultiprocessors);
    REQUIRE(copy.ok());
    const int rings = way == Way::kToHost ? 1 : 2;
    wait_until([&] { return bell.rings == rings; });
    REQUIRE(copy.value()->is_over());
    REQUIRE(copy.value()->outcome().code == Code::kOk);
    cut.check(copy.value()->sums(), source);
  }
  CHECK(std::memcmp(host.data(), source.data(), kBytes) == 0);
  CHECK(there.bytes() == source);
}

}  // namespace

TEST_CASE("copies by a GPU move every byte, and their sums are the CPU's") {
  for (std::uint64_t seed = 0; seed < 12; ++seed) move_there_and_back(seed);
}

TEST_CASE("threads copy at the same time") {
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([seed] {
      for (std::uint64_t round = 0; round < 5; ++round) move_there_and_back(100 * seed + round);
    });
  }
  for (auto& thread : threads) thread.join();
  fake_cuda_reset();
  CHECK(fake_cuda_counter("live_events") == 0);
}

TEST_CASE("a copy that is given up is waited for, and its waker left alone") {
  const auto source = random_bytes(4096, 1);
  const DeviceBytes there(gpu(), source);
  auto memory = gpu().pinned(4096);
  REQUIRE(memory.ok());
  fake_cuda_hold(nullptr, true);
  std::thread releases;
  {
    Bell bell;
    TileList list;
    list.begin_item(0);
    list.add(there.address(), address_of(memory.value().data()), 4096);
    const auto copy = started(list, Way::kToHost, bell);
    REQUIRE(copy.ok());
    CHECK_FALSE(copy.value()->is_over());
    releases = std::thread([] { fake_cuda_hold(nullptr, false); });
  }
  // The bell is gone; the kernel's end must have come first.
  CHECK(std::memcmp(memory.value().data(), source.data(), 4096) == 0);
  releases.join();
}

TEST_CASE("a gate opens when the stream has come so far, and wakes who waits") {
  const CuStream stream = make_stream(gpu());
  {
    const auto open = Gate::after(gpu(), stream);
    REQUIRE(open.ok());
    CHECK(open.value()->state().code == Code::kOk);
  }
  {
    const CurrentContext current(gpu());
    REQUIRE(fake_cuda_enqueue_wait(stream, 1) == 0);
  }
  Bell bell;
  Bell forgets;
  {
    const auto gate = Gate::after(gpu(), stream);
    REQUIRE(gate.ok());
    gate.value()->watch({&bell, &forgets});
    gate.value()->forget(forgets);
    CHECK(gate.value()->state().code == Code::kOverloaded);
    fake_cuda_release(1);
    wait_until([&] { return bell.rings == 1; });
    CHECK(gate.value()->state().code == Code::kOk);
    CHECK(forgets.rings == 0);
  }
  {
    const CurrentContext current(gpu());
    REQUIRE(fake_cuda_enqueue_wait(stream, 2) == 0);
  }
  {
    const auto gate = Gate::after(gpu(), stream);
    REQUIRE(gate.ok());
    gate.value()->watch({&forgets});
    gate.value()->forget(forgets);
  }
  fake_cuda_release(2);  // after the gate's end
  fake_cuda_reset();
  CHECK(forgets.rings == 0);
  destroy_stream(gpu(), stream);
}

TEST_CASE("what CUDA refuses and what fails on the way is told with its name") {
  const DeviceBytes there(gpu(), random_bytes(64, 3));
  auto memory = gpu().pinned(64);
  REQUIRE(memory.ok());
  Bell bell;
  TileList list;
  list.begin_item(0);
  list.add(there.address(), address_of(memory.value().data()), 64);
  for (const char* call : {"cuLaunchKernel", "cuEventRecord", "cuEventCreate"}) {
    fake_cuda_fail(call, 2, 0);
    const auto copy = started(list, Way::kToHost, bell);
    REQUIRE_FALSE(copy.ok());
    CHECK(copy.error().code == Code::kSetup);
    CHECK(copy.error().message.find("CUDA_ERROR_OUT_OF_MEMORY (2)") != std::string::npos);
  }
  for (const char* call : {"cuLaunchKernel", "cuMemcpyDtoHAsync_v2", "cuEventRecord"}) {
    fake_cuda_fail(call, 2, 0);
    const auto copy = started(list, Way::kToHost, bell, Mover::kCopyEngine);
    REQUIRE_FALSE(copy.ok());
    CHECK(copy.error().message.find("CUDA_ERROR_OUT_OF_MEMORY (2)") != std::string::npos);
  }
  for (const char* call : {"cuLaunchHostFunc", "cuStreamWaitEvent"}) {  // then nobody is woken
    fake_cuda_fail(call, 2, 0);
    const auto copy = started(list, Way::kToHost, bell);
    REQUIRE(copy.ok());
    wait_until([&] { return copy.value()->is_over(); });
    CHECK(copy.value()->outcome().code == Code::kOk);
  }
  {
    fake_cuda_fail("kernel", kIllegalAddress, 0);
    fake_cuda_hold(nullptr, true);
    const auto copy = started(list, Way::kToHost, bell);
    REQUIRE(copy.ok());
    fake_cuda_hold(nullptr, false);
    wait_until([&] { return copy.value()->is_over(); });
    CHECK(copy.value()->outcome().message.find("ILLEGAL_ADDRESS (700)") != std::string::npos);
  }
  const auto gate = Gate::after(gpu(), nullptr);
  REQUIRE_FALSE(gate.ok());
  fake_cuda_reset();
}

TEST_CASE("memory is registered once, chunk by chunk, and given back") {
  constexpr std::size_t kBytes = std::size_t{130} << 20;
  std::vector<std::byte> memory(kBytes);
  {
    RegisteredMemory registered(memory.data(), kBytes, true);
    CHECK(registered.cover(gpu(), 5, 10).code == Code::kOk);
    CHECK(fake_cuda_counter("registered_ranges") == 1);
    CHECK(registered.cover(gpu(), (std::size_t{64} << 20) - 1, 2).code == Code::kOk);
    CHECK(fake_cuda_counter("registered_ranges") == 2);
    RegisteredMemory moved = std::move(registered);
    CHECK(moved.cover(gpu(), 0, kBytes).code == Code::kOk);
    CHECK(fake_cuda_counter("registered_bytes") == kBytes);
  }
  CHECK(fake_cuda_counter("registered_bytes") == 0);
}

TEST_CASE("what is mapped for reading is registered for reading") {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  void* const base = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(base != MAP_FAILED);
  {
    RegisteredMemory for_writing(static_cast<std::byte*>(base), kBytes, true);
    CHECK(for_writing.cover(gpu(), 0, kBytes).code == Code::kSetup);
    RegisteredMemory for_reading(static_cast<std::byte*>(base), kBytes, false);
    CHECK(for_reading.cover(gpu(), 0, kBytes).code == Code::kOk);
    RegisteredMemory moved = std::move(for_reading);
    CHECK(fake_cuda_counter("registered_bytes") == kBytes);
  }
  CHECK(fake_cuda_counter("registered_bytes") == 0);
  ::munmap(base, kBytes);
}

}  // namespace infinistore
