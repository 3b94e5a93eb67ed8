#include "core/transport/rdma/server_node.h"

#include <algorithm>
#include <cerrno>

namespace infinistore {
namespace {

// On their way at once on a queue pair: a device works on them in turn, and what waits behind costs
// it nothing here.
constexpr std::uint32_t kOrdersMax = 256;
constexpr std::uint32_t kOrdersMin = 1;

std::uint32_t orders_max(const IbvDeviceAttributes& limits) noexcept {
  const int most = std::min(limits.qp_wr_max, limits.cqe_max);
  return std::clamp(static_cast<std::uint32_t>(std::max(most, 1)), kOrdersMin, kOrdersMax);
}

}  // namespace

Result<std::unique_ptr<RdmaServer>> RdmaServer::open(const std::string& device, const Pool& pool) {
  auto node = RdmaNode::open();
  if (!node) return node.error();
  auto server = std::make_unique<RdmaServer>(Private{}, std::move(*node), device, pool);
  const auto port =
      choose_port(server->node_->ports(),
                  {.device = server->wish_, .local = {}, .link_layer = {}, .is_ipv4 = {}});
  if (!port) return port.error();
  server->default_device_ = port.value().device_index;
  const auto& chosen = server->node_->devices()[server->default_device_];
  // Else it would be known only later, behind the populating, that not all can be moved.
  const std::uint64_t locked_max = locked_bytes_max();
  if (locked_max < pool.capacity_bytes()) {
    return explain_registration(ENOMEM, pool.capacity_bytes(), locked_max);
  }
  const auto probe = server->memories_[server->default_device_]->find(
      {.region = 0, .offset = 0, .bytes = std::min<std::uint64_t>(pool.region_bytes(0), 4096)}, 0);
  if (!probe) return probe.error();
  server->description_ =
      chosen.name() + ":" + std::to_string(port.value().port) +
      (port.value().link_layer == kIbvLinkEthernet ? " (RoCE v2)" : " (InfiniBand)");
  return server;
}

RdmaServer::RdmaServer(Private, std::unique_ptr<RdmaNode> node, std::string wish, const Pool& pool)
    : node_(std::move(node)), wish_(std::move(wish)), pool_(pool) {
  for (const auto& device : node_->devices()) {
    memories_.push_back(std::make_unique<PoolMemory>(device, pool));
  }
}

Result<RdmaServer::Rail> RdmaServer::make_rail(const Endpoint& peer, int tcp_socket) {
  const auto port =
      choose_port(node_->ports(), {.device = wish_,
                                   .local = local_gid(tcp_socket),
                                   .link_layer = peer.link_layer,
                                   .is_ipv4 = peer.link_layer == kIbvLinkEthernet
                                                  ? std::optional<bool>(is_ipv4(peer.gid))
                                                  : std::nullopt});
  if (!port) return port.error();
  const auto& device = node_->devices()[port.value().device_index];
  auto pair = QueuePair::create(device, port.value(), orders_max(device.limits()));
  if (!pair) return pair.error();
  const auto error = pair->connect(peer);
  if (error.code != Code::kOk) return error;
  return Rail{std::move(*pair), memories_[port.value().device_index].get()};
}

Result<bool> RdmaServer::cover_some() {
  return memories_[default_device_]->cover_some(pool_.populated_bytes());
}

}  // namespace infinistore
