#include "core/transport/rdma/server_rail.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/transport/rdma/verbs/work_status.h"

namespace infinistore {
namespace {

// Posted or taken in one call.
constexpr std::size_t kAtOnce = 32;
// So that progress shows on long ones, too.
constexpr std::uint64_t kOrderBytesMax = std::uint64_t{1} << 20;

}  // namespace

ServerRail::ServerRail(RdmaServer::Rail rail)
    : pair_(std::move(rail.pair)),
      memory_(rail.memory),
      queue_(pair_.orders_max(),
             std::clamp<std::uint64_t>(pair_.order_bytes_max(), 1, kOrderBytesMax)) {}

std::optional<ServerRail::Failure> ServerRail::add(Work work) {
  queue_.add(std::move(work));
  return pump();
}

std::optional<ServerRail::Failure> ServerRail::pump() {
  std::array<WorkQueue::Order, kAtOnce> orders;
  std::array<IbvSge, kAtOnce> places;
  std::array<IbvSendWr, kAtOnce> posts;
  for (;;) {
    const std::size_t count = queue_.take(orders);
    if (count == 0) return std::nullopt;
    for (std::size_t i = 0; i < count; ++i) {
      const auto& order = orders[i];
      places[i] = {.address = order.piece.local,
                   .bytes = static_cast<std::uint32_t>(order.piece.bytes),
                   .local_key = order.piece.local_key};
      posts[i] = {};
      posts[i].id = order.number;
      posts[i].next = i + 1 < count ? &posts[i + 1] : nullptr;
      posts[i].pieces = &places[i];
      posts[i].piece_count = 1;
      posts[i].opcode = order.direction == Direction::kRead ? kIbvRdmaRead : kIbvRdmaWrite;
      posts[i].flags = order.tells ? kIbvSignaled : 0u;
      posts[i].remote_address = order.piece.remote;
      posts[i].remote_key = order.piece.remote_key;
    }
    const int error = pair_.post(posts[0]);
    if (error == 0) continue;
    return Failure{.request_id = {},
                   .error = {Code::kDisconnected, std::string("RDMA: the device takes no more (") +
                                                      std::strerror(error) + ")"}};
  }
}

std::optional<ServerRail::Failure> ServerRail::take_completions(
    std::vector<WorkQueue::Ended>& ended) {
  // First: what comes from now on wakes again.
  if (!pair_.rearm()) {
    return Failure{.request_id = {},
                   .error = {Code::kDisconnected, "RDMA: the device tells of no completions"}};
  }
  std::array<IbvWc, kAtOnce> completions;
  for (;;) {
    const int count = pair_.poll(completions);
    if (count < 0) {
      return Failure{.request_id = {},
                     .error = {Code::kDisconnected, "RDMA: the completion queue has failed"}};
    }
    if (count == 0) return pump();
    for (const auto& done : std::span(completions).first(static_cast<std::size_t>(count))) {
      if (done.status == kWorkDone) {
        queue_.complete(done.id, ended);
        continue;
      }
      // All before it have ended well, whether they told so or not.
      if (done.id > 0 && queue_.request_of(done.id - 1)) queue_.complete(done.id - 1, ended);
      return Failure{.request_id = queue_.request_of(done.id),
                     .error = describe_work_status(done.status, done.vendor_error)};
    }
  }
}

}  // namespace infinistore
