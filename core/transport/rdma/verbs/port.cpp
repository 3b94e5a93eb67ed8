#include "core/transport/rdma/verbs/port.h"

#include <algorithm>
#include <cstring>

namespace infinistore {
namespace {

constexpr std::size_t kIpv4At = 12;

bool is_zero(const Gid& gid) noexcept { return gid == Gid{}; }

bool is_named(const PortState& port, std::string_view wish) noexcept {
  const auto colon = wish.find(':');
  if (port.device != wish.substr(0, colon)) return false;
  return colon == std::string_view::npos || wish.substr(colon + 1) == std::to_string(port.number);
}

bool fits_peer(const PortState& port, const GidEntry& gid, const PortWish& wish) noexcept {
  if (wish.link_layer && *wish.link_layer != port.link_layer) return false;
  return port.link_layer != kIbvLinkEthernet || !wish.is_ipv4 || *wish.is_ipv4 == is_ipv4(gid.gid);
}

// The lower the better; nullopt: no.
std::optional<int> rank(const PortState& port, const GidEntry& gid, const PortWish& wish) noexcept {
  if (is_zero(gid.gid) || !fits_peer(port, gid, wish)) return std::nullopt;
  if (port.link_layer == kIbvLinkInfiniBand) return 1;
  if (!gid.is_roce_v2) return std::nullopt;  // version 1 is not routed, and old
  if (wish.local && gid.gid == *wish.local) return 0;
  if (is_ipv4(gid.gid)) return 1;
  return is_link_local(gid.gid) ? 3 : 2;
}

std::string known_ports(std::span<const PortState> ports) {
  std::string names;
  for (const auto& port : ports) {
    names += (names.empty() ? "" : ", ") + port.device + ":" + std::to_string(port.number);
  }
  return names;
}

Error refusal(std::span<const PortState> ports, const PortWish& wish) {
  if (ports.empty()) {
    return {Code::kSetup, "this machine has no RDMA device (ibv_devices lists none)"};
  }
  const auto named = std::find_if(ports.begin(), ports.end(), [&](const PortState& port) {
    return wish.device.empty() || is_named(port, wish.device);
  });
  if (named == ports.end()) {
    return {Code::kSetup, "rdma_device is '" + std::string(wish.device) +
                              "', and this machine has no such port; it has " + known_ports(ports)};
  }
  const auto active = std::find_if(ports.begin(), ports.end(), [&](const PortState& port) {
    return port.is_active && (wish.device.empty() || is_named(port, wish.device));
  });
  if (active == ports.end()) {
    return {Code::kSetup, "no port of " + named->device +
                              " is active; bring its link up (ip link set DEV up; InfiniBand: a "
                              "subnet manager must run)"};
  }
  if (wish.link_layer && *wish.link_layer != active->link_layer) {
    return {Code::kSetup, "one end's RDMA port is InfiniBand, the other's Ethernet"};
  }
  return {Code::kSetup, "no port has an address of RoCE v2 " +
                            std::string(!wish.is_ipv4   ? ""
                                        : *wish.is_ipv4 ? "in IPv4, as the other end's "
                                                        : "in IPv6, as the other end's ") +
                            "(device " + active->device +
                            "); give its network interface an IP address"};
}

}  // namespace

Gid ipv4_gid(std::array<std::byte, 4> address) noexcept {
  Gid gid{};
  gid[10] = gid[11] = std::byte{0xFF};
  std::copy(address.begin(), address.end(), gid.begin() + kIpv4At);
  return gid;
}

bool is_ipv4(const Gid& gid) noexcept {
  const Gid prefix = ipv4_gid({});
  return std::memcmp(gid.data(), prefix.data(), kIpv4At) == 0;
}

bool is_link_local(const Gid& gid) noexcept {
  return gid[0] == std::byte{0xFE} && (gid[1] & std::byte{0xC0}) == std::byte{0x80};
}

Result<PortChoice> choose_port(std::span<const PortState> ports, const PortWish& wish) {
  std::optional<PortChoice> best;
  int best_rank = 0;
  for (const auto& port : ports) {
    if (!port.is_active || (!wish.device.empty() && !is_named(port, wish.device))) continue;
    for (const auto& gid : port.gids) {
      const auto found = rank(port, gid, wish);
      if (!found || (best && *found >= best_rank)) continue;
      best_rank = *found;
      best = PortChoice{.device_index = port.device_index,
                        .port = port.number,
                        .link_layer = port.link_layer,
                        .mtu = port.mtu,
                        .lid = port.lid,
                        .message_bytes_max = port.message_bytes_max,
                        .gid = gid};
    }
  }
  if (!best) return refusal(ports, wish);
  return *best;
}

}  // namespace infinistore
