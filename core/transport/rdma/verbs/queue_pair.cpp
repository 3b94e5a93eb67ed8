#include "core/transport/rdma/verbs/queue_pair.h"

#include <fcntl.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace infinistore {
namespace {

// A packet is sent again after 4.096 us * 2^14 = 67 ms, 7 times at most.
constexpr std::uint8_t kTimeout = 14;
constexpr std::uint8_t kRetries = 7;
constexpr std::uint8_t kReceiverTimer = 12;  // nothing is sent to receive buffers: never used
constexpr std::uint8_t kHopsMax = 64;
constexpr int kReadsMax = 16;  // more on their way at once gain nothing, and cost the device

Error failed(const char* what, int error) {
  return {Code::kSetup, std::string("RDMA: ") + what + " failed (" + std::strerror(error) + ")"};
}

std::uint32_t random_psn() noexcept {
  std::uint32_t psn = 0;
  [[maybe_unused]] const auto got = ::getrandom(&psn, sizeof psn, 0);
  return psn & 0xFFFFFF;
}

std::uint8_t at_most_reads(int device_max) noexcept {
  return static_cast<std::uint8_t>(std::clamp(device_max, 0, kReadsMax));
}

}  // namespace

Result<QueuePair> QueuePair::create(const RdmaDevice& device, const PortChoice& port,
                                    std::uint32_t orders_max) {
  const Verbs& verbs = device.verbs();
  OwnedChannel channel;
  if (orders_max > 0) {
    channel = OwnedChannel(verbs, verbs.create_channel(device.context()));
    if (!channel) return failed("making a completion channel", errno);
    const int flags = ::fcntl(channel->fd, F_GETFL);
    if (flags < 0 || ::fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
      return failed("making a completion channel", errno);
    }
  }
  // Room for a completion of everything that may be on its way: it cannot overflow.
  const int entries = static_cast<int>(std::max<std::uint32_t>(orders_max, 1));
  OwnedCq cq(verbs, verbs.create_cq(device.context(), entries, nullptr, channel.get(), 0));
  if (!cq) return failed("making a completion queue", errno);
  IbvQpInit init{};
  init.send_cq = init.receive_cq = cq.get();
  init.capacities = {.send_wr_max = std::max<std::uint32_t>(orders_max, 1),
                     .receive_wr_max = 1,
                     .send_sge_max = 1,
                     .receive_sge_max = 1,
                     .inline_bytes_max = 0};
  init.type = kIbvReliable;
  OwnedQp qp(verbs, verbs.create_qp(device.pd(), &init));
  if (!qp) return failed("making a queue pair", errno);
  QueuePair pair(device, port, orders_max, std::move(channel), std::move(cq), std::move(qp),
                 random_psn());
  IbvQpAttributes attributes{};
  attributes.state = kIbvQpInit;
  attributes.port = port.port;
  // What the peer may do is said by each registration; of the server's memory none allows any.
  attributes.access = orders_max > 0 ? 0u : unsigned{kIbvRemoteRead | kIbvRemoteWrite};
  const auto error =
      pair.modify(attributes, kIbvMaskState | kIbvMaskPkey | kIbvMaskPort | kIbvMaskAccess, "INIT");
  if (error.code != Code::kOk) return error;
  return pair;
}

Endpoint QueuePair::endpoint() const noexcept {
  return {.qp = qp_->number,
          .psn = psn_,
          .lid = port_.lid,
          .mtu = port_.mtu,
          .link_layer = port_.link_layer,
          .reads_max = at_most_reads(device_->limits().qp_reads_max),
          .gid = port_.gid.gid};
}

Error QueuePair::connect(const Endpoint& peer) {
  if (peer.link_layer != port_.link_layer) {
    return {Code::kSetup, "one end's RDMA port is InfiniBand, the other's Ethernet"};
  }
  IbvQpAttributes attributes{};
  attributes.state = kIbvQpReadyToReceive;
  attributes.mtu = std::min(peer.mtu, port_.mtu);
  attributes.peer_qp = peer.qp;
  attributes.receive_psn = peer.psn;
  attributes.peer_reads_max = at_most_reads(device_->limits().qp_reads_max);
  attributes.receiver_not_ready_timer = kReceiverTimer;
  attributes.address.gid = peer.gid;
  attributes.address.own_gid_index = static_cast<std::uint8_t>(port_.gid.index);
  attributes.address.hop_limit = kHopsMax;
  attributes.address.lid = peer.lid;
  attributes.address.is_global = port_.link_layer == kIbvLinkEthernet ? 1 : 0;
  attributes.address.port = port_.port;
  auto error = modify(attributes,
                      kIbvMaskState | kIbvMaskAddress | kIbvMaskMtu | kIbvMaskPeerQp |
                          kIbvMaskReceivePsn | kIbvMaskPeerReads | kIbvMaskReceiverTimer,
                      "RTR");
  if (error.code != Code::kOk || orders_max_ == 0) return error;
  attributes = {};
  attributes.state = kIbvQpReadyToSend;
  attributes.timeout = kTimeout;
  attributes.retries = kRetries;
  attributes.receiver_not_ready_retries = kRetries;
  attributes.send_psn = psn_;
  attributes.reads_max =
      std::min(peer.reads_max, at_most_reads(device_->limits().qp_init_reads_max));
  return modify(attributes,
                kIbvMaskState | kIbvMaskTimeout | kIbvMaskRetries | kIbvMaskReceiverRetries |
                    kIbvMaskSendPsn | kIbvMaskReads,
                "RTS");
}

Error QueuePair::modify(IbvQpAttributes& attributes, int mask, const char* to) noexcept {
  const int error = device_->verbs().modify_qp(qp_.get(), &attributes, mask);
  if (error == 0) return {Code::kOk, {}};
  return {Code::kSetup, std::string("RDMA: a queue pair of ") + device_->name() +
                            " did not reach the state " + to + " (" + std::strerror(error) +
                            "); can the two hosts' RDMA ports reach each other (rping, "
                            "ibv_rc_pingpong)?"};
}

int QueuePair::post(IbvSendWr& first) noexcept {
  IbvSendWr* bad = nullptr;
  return qp_->context->calls.post_send(qp_.get(), &first, &bad);
}

bool QueuePair::rearm() noexcept {
  IbvCq* cq = nullptr;
  void* owner = nullptr;
  unsigned count = 0;
  while (device_->verbs().get_cq_event(channel_.get(), &cq, &owner) == 0) ++count;
  if (count > 0) device_->verbs().ack_cq_events(cq_.get(), count);
  return cq_->context->calls.request_notify(cq_.get(), 0) == 0;
}

int QueuePair::poll(std::span<IbvWc> completions) noexcept {
  return cq_->context->calls.poll_cq(cq_.get(), static_cast<int>(completions.size()),
                                     completions.data());
}

void QueuePair::fail() noexcept {
  IbvQpAttributes attributes{};
  attributes.state = kIbvQpError;
  device_->verbs().modify_qp(qp_.get(), &attributes, kIbvMaskState);
}

}  // namespace infinistore
