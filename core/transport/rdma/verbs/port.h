#pragma once
// Port: one port of an RDMA device, and which of all ports a connection takes.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/transport/rdma/verbs/verbs.h"

namespace infinistore {

struct GidEntry {
  Gid gid{};
  std::uint32_t index = 0;
  bool is_roce_v2 = false;
};

// As it was when it was asked.
struct PortState {
  std::string device;
  std::size_t device_index = 0;  // of its node
  std::uint8_t number = 1;
  bool is_active = false;
  std::uint8_t link_layer = 0;
  std::uint8_t mtu = 0;  // 1 to 5
  std::uint16_t lid = 0;
  std::uint32_t message_bytes_max = 0;
  std::vector<GidEntry> gids;
};

struct PortChoice {
  std::size_t device_index = 0;
  std::uint8_t port = 1;
  std::uint8_t link_layer = 0;
  std::uint8_t mtu = 0;
  std::uint16_t lid = 0;
  std::uint32_t message_bytes_max = 0;
  GidEntry gid;
};

struct PortWish {
  std::string_view device;   // "mlx5_0", "mlx5_0:2", or empty: any
  std::optional<Gid> local;  // of the TCP connection's own address
  // Of the other end, once it is known: its link layer, and its addresses' family, must be ours.
  std::optional<std::uint8_t> link_layer;
  std::optional<bool> is_ipv4;
};

// An IPv4 address as a GID: ::ffff:a.b.c.d.
Gid ipv4_gid(std::array<std::byte, 4> address) noexcept;
bool is_ipv4(const Gid& gid) noexcept;
bool is_link_local(const Gid& gid) noexcept;

// The port whose address the connection has; else the first that works.  kSetup: why none does, and
// the remedy.
Result<PortChoice> choose_port(std::span<const PortState> ports, const PortWish& wish);

}  // namespace infinistore
