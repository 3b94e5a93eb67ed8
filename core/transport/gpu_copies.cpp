#include "core/transport/gpu_copies.h"

#include <utility>

#include "core/transport/link.h"

namespace infinistore {

Error GpuCopies::start(Transfer& transfer, TileList tiles, Way way, bool sums) {
  auto copy = TileCopy::prepare(*transfer.gpu(), std::move(tiles));
  if (!copy) return copy.error();
  const auto launched = copy.value()->launch(way, sums, waker_);
  if (launched.code != Code::kOk) return launched;
  transfer.copy = std::move(*copy);
  moving_.push_back(&transfer);
  return {Code::kOk, {}};
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
