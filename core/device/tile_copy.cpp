#include "core/device/tile_copy.h"

#include <cstring>
#include <utility>
#include <vector>

namespace infinistore {
Result<std::unique_ptr<TileCopy>> TileCopy::prepare(Gpu& gpu, TileList tiles) {
  const CurrentContext current(gpu);
  auto copy = std::make_unique<TileCopy>(Private{}, gpu, std::move(tiles));
  const auto all = copy->tiles_.tiles();
  auto memory = gpu.pinned(all.size() * (sizeof(Tile) + sizeof(std::uint64_t)));
  if (!memory) return memory.error();
  copy->memory_ = std::move(*memory);
  std::memcpy(copy->memory_.data(), all.data(), all.size_bytes());
  const auto error = gpu.make_event(copy->event_);
  if (error.code != Code::kOk) return error;
  return copy;
}

Error TileCopy::launch(Way way, bool sums, Waker& waker, LaunchShape shape) {
  const CurrentContext current(gpu_);
  const CuStream stream = gpu_.copies(way);
  const auto error = run(gpu_.kernel(way, sums), shape, stream);
  return error.code == Code::kOk ? mark_end(way, stream, waker) : error;
}

Error TileCopy::launch_engine(Waker& waker) {
  const CurrentContext current(gpu_);
  const CuStream stream = gpu_.copies(Way::kToHost);
  auto error = run(gpu_.sum_kernel(), kShape, stream);
  if (error.code == Code::kOk) error = copy_pieces(stream);
  if (error.code == Code::kOk) return mark_end(Way::kToHost, stream, waker);
  gpu_.driver().stream_synchronize(stream);
  return error;
}

Error TileCopy::run(CuFunction kernel, LaunchShape shape, CuStream stream) {
  const void* tiles = memory_.data();
  std::uint64_t* results_at = results();
  auto count = static_cast<std::uint32_t>(tiles_.tiles().size());
  void* parameters[] = {static_cast<void*>(&tiles), static_cast<void*>(&results_at), &count};
  return gpu_.check(
      gpu_.driver().launch_kernel(kernel, shape.thread_blocks, 1, 1, shape.threads, 1, 1, 0, stream,
                                  static_cast<void**>(parameters), nullptr),
      "launching a copy");
}

// Tiles that adjoin on both sides are one piece.
Error TileCopy::copy_pieces(CuStream stream) {
  std::vector<CuAddress> from;
  std::vector<CuAddress> to;
  std::vector<std::size_t> bytes;
  for (const auto& tile : tiles_.tiles()) {
    const bool adjoins = !bytes.empty() && from.back() + bytes.back() == tile.device &&
                         to.back() + bytes.back() == tile.host;
    if (adjoins) {
      bytes.back() += tile.bytes;
    } else {
      from.push_back(tile.device);
      to.push_back(tile.host);
      bytes.push_back(tile.bytes);
    }
  }
  const auto& driver = gpu_.driver();
  if (driver.copy_batch != nullptr) {
    CuCopyAttributes attributes;
    std::size_t first = 0;
    std::size_t failed = 0;
    return gpu_.check(driver.copy_batch(to.data(), from.data(), bytes.data(), bytes.size(),
                                        &attributes, &first, 1, &failed, stream),
                      "a copy engine's copies");
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto error =
        gpu_.check(driver.copy_to_host(reinterpret_cast<void*>(to[i]), from[i], bytes[i], stream),
                   "a copy engine's copy");
    if (error.code != Code::kOk) return error;
  }
  return {Code::kOk, {}};
}

Error TileCopy::mark_end(Way way, CuStream stream, Waker& waker) {
  const auto error =
      gpu_.check(gpu_.driver().event_record(event_, stream), "marking the end of a copy");
  if (error.code != Code::kOk) {
    gpu_.driver().stream_synchronize(stream);
    return error;
  }
  is_over_ = false;
  // By way of another stream: the next copy need not wait for the call.
  call_.emplace(gpu_, gpu_.ends(way), event_, std::vector<Waker*>{&waker});
  return error;
}

std::uint64_t* TileCopy::results() const noexcept {
  return reinterpret_cast<std::uint64_t*>(memory_.data() + tiles_.tiles().size_bytes());
}

bool TileCopy::is_over() {
  if (is_over_) return true;
  const CuStatus status = gpu_.driver().event_query(event_);
  if (status == kCuNotReady) return false;
  // A question that CUDA refuses says nothing of the copy: only its end does, or its context's.
  if (status == kCuSuccess) {
    end(status);
  } else {
    wait();
  }
  return is_over_;
}

void TileCopy::wait() noexcept {
  if (is_over_) return;
  const CurrentContext current(gpu_);
  end(gpu_.driver().event_synchronize(event_));
}

void TileCopy::end(CuStatus status) {
  is_over_ = true;
  outcome_ = gpu_.check(status, "a copy");
}

TileCopy::~TileCopy() {
  wait();
  gpu_.destroy_event(event_);
}

std::vector<std::uint64_t> TileCopy::sums() const {
  return tiles_.sums({results(), tiles_.tiles().size()});
}

}  // namespace infinistore
