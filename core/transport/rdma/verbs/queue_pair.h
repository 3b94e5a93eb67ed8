#pragma once
// QueuePair: one end of a reliable connection between two RDMA ports.
//
// The server's end drives: it READs and WRITEs, and learns of the ends of both.  The client's end
// only serves, and knows nothing of what comes and goes.

#include <span>

#include "core/base/result.h"
#include "core/transport/rdma/verbs/node.h"
#include "core/wire/exposure.h"

namespace infinistore {

class QueuePair {
 public:
  // `orders_max`: on their way at once; 0: this end only serves.
  static Result<QueuePair> create(const RdmaDevice& device, const PortChoice& port,
                                  std::uint32_t orders_max);

  // What the other end must know.
  Endpoint endpoint() const noexcept;
  // Once; afterwards the peer may reach memory that is registered for it.
  Error connect(const Endpoint& peer);

  const RdmaDevice& device() const noexcept { return *device_; }
  std::uint32_t orders_max() const noexcept { return orders_max_; }
  std::uint32_t order_bytes_max() const noexcept { return port_.message_bytes_max; }

  // Of an end that drives.  0, or errno.
  int post(IbvSendWr& first) noexcept;
  int event_fd() const noexcept { return channel_->fd; }
  // Takes the events that have come, and asks for the next.  False: that failed.
  bool rearm() noexcept;
  // How many there are; negative: it failed.
  int poll(std::span<IbvWc> completions) noexcept;
  // What is on its way ends in errors.
  void fail() noexcept;

 private:
  QueuePair(const RdmaDevice& device, const PortChoice& port, std::uint32_t orders_max,
            OwnedChannel channel, OwnedCq cq, OwnedQp qp, std::uint32_t psn)
      : device_(&device),
        port_(port),
        orders_max_(orders_max),
        channel_(std::move(channel)),
        cq_(std::move(cq)),
        qp_(std::move(qp)),
        psn_(psn) {}

  Error modify(IbvQpAttributes& attributes, int mask, const char* to) noexcept;

  const RdmaDevice* device_;
  PortChoice port_;
  std::uint32_t orders_max_;
  OwnedChannel channel_;  // ends last
  OwnedCq cq_;
  OwnedQp qp_;  // when it has ended, the device touches no memory for it any more
  std::uint32_t psn_;
};

}  // namespace infinistore
