#include "core/transport/rdma/verbs/port.h"

#include <doctest/doctest.h>

namespace infinistore {
namespace {

Gid ipv4(unsigned last, unsigned third = 0) {
  return ipv4_gid(
      {std::byte{10}, std::byte{99}, static_cast<std::byte>(third), static_cast<std::byte>(last)});
}

Gid ipv6(unsigned first, unsigned last) {
  Gid gid{};
  gid[0] = static_cast<std::byte>(first >> 8);
  gid[1] = static_cast<std::byte>(first & 255);
  gid[15] = static_cast<std::byte>(last);
  return gid;
}

PortState ethernet(std::string device, std::size_t index, std::vector<GidEntry> gids) {
  return {.device = std::move(device),
          .device_index = index,
          .number = 1,
          .is_active = true,
          .link_layer = kIbvLinkEthernet,
          .mtu = 3,
          .lid = 0,
          .message_bytes_max = 1u << 30,
          .gids = std::move(gids)};
}

const GidEntry kLinkLocalV1{.gid = ipv6(0xFE80, 1), .index = 0, .is_roce_v2 = false};
const GidEntry kLinkLocal{.gid = ipv6(0xFE80, 1), .index = 1, .is_roce_v2 = true};

TEST_CASE("a connection takes the port that has its own address") {
  const std::vector<PortState> ports = {
      ethernet("one", 0, {kLinkLocalV1, kLinkLocal, {ipv4(1, 0), 3, true}}),
      ethernet("two", 1,
               {kLinkLocalV1, kLinkLocal, {ipv4(1, 1), 2, false}, {ipv4(1, 1), 5, true}})};
  const auto choice =
      choose_port(ports, {.device = {}, .local = ipv4(1, 1), .link_layer = {}, .is_ipv4 = {}});
  REQUIRE(choice);
  CHECK(choice.value().device_index == 1);
  CHECK(choice.value().gid.index == 5);  // of RoCE v2, wherever it stands
}

TEST_CASE("without its address, a routable one is taken, IPv4 first, link-local last") {
  const std::vector<PortState> ports = {
      ethernet("one", 0, {kLinkLocalV1, kLinkLocal}),
      ethernet("two", 1, {kLinkLocal, {ipv6(0xFD00, 2), 2, true}, {ipv4(2), 3, true}})};
  CHECK(choose_port(ports, {}).value().gid.index == 3);
  const PortWish ipv6_peer{
      .device = {}, .local = {}, .link_layer = kIbvLinkEthernet, .is_ipv4 = false};
  CHECK(choose_port(ports, ipv6_peer).value().gid.index == 2);
  CHECK(choose_port(std::span(ports).first(1), {}).value().gid.index == 1);
}

TEST_CASE("InfiniBand needs no address of IP") {
  auto port = ethernet("ib", 0, {{ipv6(0xFE80, 9), 0, false}});
  port.link_layer = kIbvLinkInfiniBand;
  port.lid = 17;
  CHECK(choose_port(std::span(&port, 1), {}).value().lid == 17);
  const PortWish other{.device = {}, .local = {}, .link_layer = kIbvLinkEthernet, .is_ipv4 = true};
  CHECK(choose_port(std::span(&port, 1), other).error().message.find("InfiniBand") !=
        std::string::npos);
}

TEST_CASE("a device that is asked for by name is taken, or it is said what there is") {
  std::vector<PortState> ports = {ethernet("one", 0, {{ipv4(1), 1, true}}),
                                  ethernet("two", 1, {{ipv4(2), 1, true}})};
  CHECK(choose_port(ports, {.device = "two", .local = ipv4(1), .link_layer = {}, .is_ipv4 = {}})
            .value()
            .device_index == 1);
  CHECK(choose_port(ports, {.device = "two:1", .local = {}, .link_layer = {}, .is_ipv4 = {}}).ok());
  const auto none =
      choose_port(ports, {.device = "tow", .local = {}, .link_layer = {}, .is_ipv4 = {}});
  CHECK(none.code() == Code::kSetup);
  CHECK(none.error().message.find("one:1, two:1") != std::string::npos);
  ports[1].is_active = false;
  const auto down =
      choose_port(ports, {.device = "two", .local = {}, .link_layer = {}, .is_ipv4 = {}});
  CHECK(down.error().message.find("ip link set") != std::string::npos);
}

TEST_CASE("no device, and no address, are told apart") {
  CHECK(choose_port({}, {}).error().message.find("no RDMA device") != std::string::npos);
  const auto bare = ethernet("one", 0, {kLinkLocalV1});
  CHECK(choose_port(std::span(&bare, 1), {}).error().message.find("IP address") !=
        std::string::npos);
}

}  // namespace
}  // namespace infinistore
