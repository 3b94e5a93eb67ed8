#include "core/transport/rdma/work_queue.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace infinistore {
namespace {

// Each completion costs an entry and mostly a wake-up; without any there would be no progress to
// see, and no room for more.
constexpr std::size_t kUntoldMax = 32;
constexpr std::uint64_t kUntoldBytesMax = std::uint64_t{4} << 20;

}  // namespace

void Work::add(const WorkPiece& piece) {
  if (!pieces.empty()) {
    auto& last = pieces.back();
    if (last.local + last.bytes == piece.local && last.remote + last.bytes == piece.remote &&
        last.local_key == piece.local_key && last.remote_key == piece.remote_key) {
      last.bytes += piece.bytes;
      return;
    }
  }
  pieces.push_back(piece);
}

WorkQueue::WorkQueue(std::size_t orders_max, std::uint64_t order_bytes_max)
    : orders_max_(orders_max), order_bytes_max_(order_bytes_max) {
  KV_CHECK(orders_max > 0 && order_bytes_max > 0);
}

void WorkQueue::add(Work work) {
  KV_CHECK(!work.pieces.empty());
  waiting_.push_back({.work = std::move(work), .piece = 0, .offset = 0});
}

std::size_t WorkQueue::take(std::span<Order> orders) {
  std::size_t count = 0;
  while (count < orders.size() && !waiting_.empty() && posted_.size() < orders_max_) {
    orders[count++] = next_order();
  }
  return count;
}

WorkQueue::Order WorkQueue::next_order() {
  auto& first = waiting_.front();
  const auto& piece = first.work.pieces[first.piece];
  const std::uint64_t bytes = std::min(piece.bytes - first.offset, order_bytes_max_);
  Order order{.piece = {.local = piece.local + first.offset,
                        .remote = piece.remote + first.offset,
                        .bytes = bytes,
                        .local_key = piece.local_key,
                        .remote_key = piece.remote_key},
              .number = first_number_ + posted_.size(),
              .direction = first.work.direction,
              .tells = false};
  first.offset += bytes;
  if (first.offset == piece.bytes) {
    ++first.piece;
    first.offset = 0;
  }
  const bool is_last = first.piece == first.work.pieces.size();
  posted_.push_back({.request_id = first.work.request_id,
                     .bytes = bytes,
                     .direction = order.direction,
                     .is_last = is_last});
  if (is_last) waiting_.pop_front();
  ++untold_;
  untold_bytes_ += bytes;
  order.tells = is_last || untold_ >= kUntoldMax || untold_bytes_ >= kUntoldBytesMax ||
                posted_.size() == orders_max_;
  if (order.tells) untold_ = untold_bytes_ = 0;
  return order;
}

void WorkQueue::complete(std::uint64_t number, std::vector<Ended>& ended) {
  KV_CHECK(number >= first_number_ && number - first_number_ < posted_.size());
  while (first_number_ <= number) {
    const auto& order = posted_.front();
    moved_bytes_ += order.bytes;
    if (order.is_last) ended.push_back({order.request_id, order.direction});
    posted_.pop_front();
    ++first_number_;
  }
}

std::optional<std::uint64_t> WorkQueue::request_of(std::uint64_t number) const noexcept {
  if (number < first_number_ || number - first_number_ >= posted_.size()) return std::nullopt;
  return posted_[number - first_number_].request_id;
}

}  // namespace infinistore
