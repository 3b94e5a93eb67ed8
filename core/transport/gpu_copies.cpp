#include "core/transport/gpu_copies.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/transport/link.h"

namespace infinistore {

namespace {

constexpr std::uint64_t kStagedAlignment = 64;

}  // namespace

Error stage(Transfer& transfer) {
  std::uint64_t bytes = 0;
  transfer.staged.clear();
  for (const auto& item : transfer.items) {
    transfer.staged.push_back(bytes);
    bytes += (item.bytes() + kStagedAlignment - 1) / kStagedAlignment * kStagedAlignment;
  }
  auto memory = transfer.gpu()->pinned(bytes);
  if (!memory) return memory.error();
  transfer.staging = std::move(*memory);
  for (auto& at : transfer.staged) at += reinterpret_cast<std::uintptr_t>(transfer.staging.data());
  return {Code::kOk, {}};
}

void enter_staging(Transfer& transfer) {
  transfer.targets = transfer.items;
  for (std::size_t i = 0; i < transfer.items.size(); ++i) {
    const auto& target = transfer.targets[i];
    transfer.items[i] = {.addresses = std::span(transfer.staged).subspan(i, 1),
                         .segment_bytes = target.bytes(),
                         .position = target.position};
  }
}

void leave_staging(Transfer& transfer) { transfer.items = std::exchange(transfer.targets, {}); }

Error GpuCopies::start_staged(Transfer& transfer, Way way, bool sums) {
  TileList tiles;
  for (std::size_t i = 0; i < transfer.items.size(); ++i) {
    const auto& item = transfer.items[i];
    tiles.begin_item(item.position);
    std::uint64_t at = transfer.staged[i];
    for (const auto address : item.addresses) {
      tiles.add(address, at, item.segment_bytes);
      at += item.segment_bytes;
    }
  }
  return start(transfer, std::move(tiles), way, sums);
}

Error GpuCopies::start(Transfer& transfer, TileList tiles, Way way, bool sums) {
  auto copy = TileCopy::prepare(*transfer.gpu(), std::move(tiles));
  if (!copy) return copy.error();
  const bool uses_engine =
      way == Way::kToHost && transfer.items.front().mover == Mover::kCopyEngine;
  auto launched =
      uses_engine ? copy.value()->launch_engine(waker_) : copy.value()->launch(way, sums, waker_);
  if (launched.code != Code::kOk) return launched;
  transfer.copy = std::move(*copy);
  moving_.push_back(&transfer);
  return {Code::kOk, {}};
}

bool GpuCopies::has(std::uint64_t request_id) const noexcept {
  return std::ranges::any_of(
      moving_, [&](const Transfer* transfer) { return transfer->request_id == request_id; });
}

std::vector<std::uint64_t> GpuCopies::take() {
  std::vector<std::uint64_t> requests;
  std::erase_if(moving_, [&](const Transfer* transfer) {
    if (!transfer->copy->is_over()) return false;
    requests.push_back(transfer->request_id);
    return true;
  });
  return requests;
}

void GpuCopies::wait() noexcept {
  for (const auto* const transfer : moving_) transfer->copy->wait();
  moving_.clear();
}

}  // namespace infinistore
