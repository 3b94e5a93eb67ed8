#include "core/transport/rdma/verbs/node.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/base/fd.h"

namespace infinistore {
namespace {

constexpr int kDevicesMax = 32;
constexpr std::size_t kGidsMax = 1024;  // of one device, over its ports
constexpr std::uint8_t kPortsMax = 2;

std::optional<RdmaDevice> open_one(const Verbs& verbs, IbvDevice* device) {
  OwnedContext context(verbs, verbs.open_device(device));
  if (!context) return std::nullopt;
  IbvDeviceAttributes limits{};
  if (verbs.query_device(context.get(), &limits) != 0) return std::nullopt;
  OwnedPd pd(verbs, verbs.alloc_pd(context.get()));
  if (!pd) return std::nullopt;
  return RdmaDevice(verbs, verbs.device_name(device), std::move(context), std::move(pd), limits);
}

std::vector<IbvGidEntry> gids_of(const RdmaDevice& device) {
  std::vector<IbvGidEntry> entries(kGidsMax);
  const auto count = device.verbs().query_gid_table(device.context(), entries.data(),
                                                    entries.size(), 0, sizeof(IbvGidEntry));
  entries.resize(static_cast<std::size_t>(std::max<std::ptrdiff_t>(count, 0)));
  return entries;
}

std::optional<PortState> look_at(const RdmaDevice& device, std::size_t index, std::uint8_t number,
                                 const std::vector<IbvGidEntry>& gids) {
  IbvPortAttributes found{};
  if (device.verbs().query_port(device.context(), number, &found) != 0) return std::nullopt;
  PortState port{.device = device.name(),
                 .device_index = index,
                 .number = number,
                 .is_active = found.state == kIbvPortActive,
                 // 0 is what InfiniBand said before there was another.
                 .link_layer = found.link_layer == 0 ? kIbvLinkInfiniBand : found.link_layer,
                 .mtu = static_cast<std::uint8_t>(found.mtu_active),
                 .lid = found.lid,
                 .message_bytes_max = found.message_bytes_max,
                 .gids = {}};
  for (const auto& entry : gids) {
    if (entry.port != number) continue;
    port.gids.push_back(
        {.gid = entry.gid, .index = entry.index, .is_roce_v2 = entry.type == kIbvGidRoceV2});
  }
  return port;
}

// Whether CAP_IPC_LOCK is among the effective capabilities.
bool may_lock_all() {
  constexpr unsigned kIpcLock = 14;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("CapEff:")) continue;
    const auto bits = std::strtoull(line.c_str() + std::strlen("CapEff:"), nullptr, 16);
    return (bits >> kIpcLock & 1) != 0;
  }
  return false;
}

// The library says of a process without descriptors that there are no devices, or no such call.
bool has_descriptor() noexcept {
  return static_cast<bool>(UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
}

Error not_opened(const std::string& what, const std::string& remedy) {
  const int error = errno;
  if (!has_descriptor()) {
    return {Code::kSetup,
            "no descriptor is left for an RDMA device (Too many open files); raise "
            "ulimit -n"};
  }
  return {Code::kSetup, what + " (" + std::strerror(error) + "); " + remedy};
}

}  // namespace

Result<std::unique_ptr<RdmaNode>> RdmaNode::open() {
  const auto loaded = load_verbs();
  if (!loaded) return loaded.error();
  const Verbs& verbs = *loaded.value();
  int count = 0;
  IbvDevice** const list = verbs.device_list(&count);
  if (list == nullptr) {
    return not_opened("RDMA devices cannot be listed", "is the module ib_uverbs loaded?");
  }
  std::vector<RdmaDevice> devices;
  int error = 0;
  for (int i = 0; i < std::min(count, kDevicesMax); ++i) {
    auto device = open_one(verbs, list[i]);
    if (!device) error = errno;
    if (device) devices.push_back(std::move(*device));
  }
  verbs.free_device_list(list);
  if (devices.empty() && count > 0) {
    errno = error;
    return not_opened("this machine's RDMA devices cannot be opened",
                      "in a container pass /dev/infiniband to it");
  }
  if (devices.empty() && !has_descriptor()) return not_opened({}, {});
  if (devices.empty()) {
    return Error{Code::kSetup, "this machine has no RDMA device (ibv_devices lists none)"};
  }
  return std::make_unique<RdmaNode>(std::move(devices));
}

std::vector<PortState> RdmaNode::ports() const {
  std::vector<PortState> ports;
  for (std::size_t index = 0; index < devices_.size(); ++index) {
    const auto gids = gids_of(devices_[index]);
    for (std::uint8_t number = 1; number <= kPortsMax; ++number) {
      auto port = look_at(devices_[index], index, number, gids);
      if (port) ports.push_back(std::move(*port));
    }
  }
  return ports;
}

Result<OwnedMr> RdmaDevice::register_memory(MutableBytes memory, int access) const {
  OwnedMr mr(verbs_, verbs_.reg_mr(pd_.get(), memory.data(), memory.size(), access));
  if (mr) return mr;
  return explain_registration(errno, memory.size(), locked_bytes_max());
}

Error explain_registration(int error, std::uint64_t bytes, std::uint64_t locked_max) {
  const std::string what = "memory of " + std::to_string(bytes) + " bytes cannot be registered";
  if ((error == ENOMEM || error == EAGAIN || error == EPERM) && locked_max < ~std::uint64_t{0}) {
    return {Code::kSetup,
            what + ": RLIMIT_MEMLOCK is " + std::to_string(locked_max) +
                " bytes; raise it (ulimit -l unlimited; systemd: LimitMEMLOCK=infinity; "
                "containers: --ulimit memlock=-1)"};
  }
  if (error == EFAULT || error == EINVAL) {
    return {Code::kSetup, what + " (" + std::strerror(error) +
                              "): it is not mapped, may not be written, or is a GPU's and neither "
                              "nvidia_peermem nor nv_peer_mem is loaded"};
  }
  return {Code::kSetup, what + " (" + std::strerror(error) + ")"};
}

std::uint64_t locked_bytes_max() {
  rlimit limit{};
  if (may_lock_all() || ::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return ~std::uint64_t{0};
  }
  return limit.rlim_cur;
}

std::optional<Gid> local_gid(int socket) noexcept {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  if (address.ss_family == AF_INET) {
    std::array<std::byte, 4> raw{};
    std::memcpy(raw.data(), &reinterpret_cast<sockaddr_in&>(address).sin_addr, raw.size());
    return ipv4_gid(raw);
  }
  if (address.ss_family != AF_INET6) return {};
  Gid gid{};  // an IPv4 address on a socket of IPv6 has the form of its GID
  std::memcpy(gid.data(), &reinterpret_cast<sockaddr_in6&>(address).sin6_addr, gid.size());
  return gid;
}

}  // namespace infinistore
