#include "core/transport/gpu_copies.h"

#include <utility>

#include "core/transport/link.h"

namespace infinistore {

Error GpuCopies::start(Transfer& transfer, TileList tiles, Way way, bool sums) {
  auto copy = TileCopy::start(*transfer.gpu(), std::move(tiles), way, sums, waker_);
  if (!copy) return copy.error();
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
