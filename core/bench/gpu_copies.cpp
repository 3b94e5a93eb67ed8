#include "core/bench/gpu_copies.h"

#include <utility>

#include "core/base/clock.h"
#include "core/base/poller.h"

namespace infinistore {
namespace {

struct Nobody final : Waker {
  void wake() noexcept override {}
};

}  // namespace

Result<std::uint64_t> GpuCopyLoop::run(std::span<const std::uint64_t> device,
                                       std::span<const std::uint64_t> offsets,
                                       std::uint64_t block_bytes, Way way, bool sums,
                                       LaunchShape shape) {
  const auto covered = registered_.cover(gpu_, 0, host_.size());
  if (covered.code != Code::kOk) return covered;
  TileList tiles;
  for (std::size_t i = 0; i < device.size(); ++i) {
    if (offsets[i] > host_.size() || block_bytes > host_.size() - offsets[i]) {
      return Error{Code::kInvalid, "a block lies outside of the host's memory"};
    }
    tiles.begin_item(0);
    tiles.add(device[i], reinterpret_cast<std::uintptr_t>(host_.data() + offsets[i]), block_bytes);
  }
  Nobody nobody;
  const MonotonicClock clock;
  auto copy = TileCopy::prepare(gpu_, std::move(tiles));
  if (!copy) return copy.error();
  const Nanos before = clock.now();
  const auto launched = copy.value()->launch(way, sums, nobody, shape);
  if (launched.code != Code::kOk) return launched;
  copy.value()->wait();
  const Nanos after = clock.now();
  if (copy.value()->outcome().code != Code::kOk) return copy.value()->outcome();
  if (sums) sums_ = copy.value()->sums();
  return static_cast<std::uint64_t>(after - before);
}

}  // namespace infinistore
