#include "core/store/quota/seats.h"

namespace infinistore {
namespace {

// Chains are written from their start, so that an entry passes the blocks before it.
constexpr int kStepsMax = 16;

// More than any depth counts, so that places of a young store do not end at 0.
constexpr std::uint64_t kDepthsMax = std::uint64_t{1} << 33;

}  // namespace

std::uint64_t Seats::place(const Entry& entry) noexcept {
  return kDepthsMax + entry.used_at - std::uint64_t{2} * entry.depth;
}

void Seats::insert(QuotaId quota, Entry& entry) noexcept {
  Queue& queue = queues_[quota];
  Seat* const front = queue.empty() ? nullptr : &queue.front();
  Seat* before = front == nullptr ? nullptr : front->hook.prev;  // the last
  for (int step = 0; step < kStepsMax && before != nullptr; ++step) {
    if (place(*before->entry) <= place(entry)) break;
    before = before == front ? nullptr : before->hook.prev;
  }
  queue.insert_after(before, entry.seat());
}

std::size_t Seats::size() const noexcept {
  std::size_t sum = 0;
  for (const Queue& queue : queues_) sum += queue.size();
  return sum;
}

}  // namespace infinistore
