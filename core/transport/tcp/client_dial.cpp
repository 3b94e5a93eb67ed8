#include "core/transport/tcp/client_dial.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/transport/tcp/names.h"

namespace infinistore {
namespace {

// A peer that vanished without a word is noticed after about so long, even with no request open.
constexpr int kKeepAliveIdleS = 10;
constexpr int kKeepAliveEveryS = 5;
constexpr int kKeepAliveCount = 3;

void set_option(int fd, int level, int name, int value) noexcept {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

// 0, or errno.
int connect_one(int fd, const SocketAddress& address, DialDeadline deadline) noexcept {
  const auto* where = reinterpret_cast<const sockaddr*>(&address.bytes);
  if (::connect(fd, where, address.size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_ready(fd, POLLOUT, deadline)) return ETIMEDOUT;
  int failed = 0;
  socklen_t size = sizeof failed;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) != 0) return errno;
  return failed;
}

}  // namespace

Error no_descriptor_left(const std::string& what) {
  return {Code::kSetup,
          "no descriptor is left for " + what + " (Too many open files); raise ulimit -n"};
}

std::string shown(const std::string& host, std::uint16_t port) {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool wait_ready(int fd, short events, DialDeadline deadline) noexcept {
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd poller{.fd = fd, .events = events, .revents = 0};
    const auto timeout = std::clamp<std::chrono::milliseconds::rep>(left.count(), 0, 3'600'000);
    const int ready = ::poll(&poller, 1, static_cast<int>(timeout));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

Result<UniqueFd> dial_tcp(const std::string& host, std::uint16_t port, DialDeadline deadline) {
  auto addresses = process_names().find(host, port, deadline);
  if (!addresses) return addresses.error();
  int failed = EADDRNOTAVAIL;
  for (const auto& address : *addresses) {
    UniqueFd fd(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd && (errno == EMFILE || errno == ENFILE)) return no_descriptor_left("a connection");
    if (!fd) {
      failed = errno;
      continue;
    }
    failed = connect_one(fd.get(), address, deadline);
    if (failed != 0) continue;
    // Frames are written whole: waiting to join them with later ones only adds latency.
    set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd.get(), IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleS);
    set_option(fd.get(), IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveEveryS);
    set_option(fd.get(), IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveCount);
    return fd;
  }
  return Error{Code::kDisconnected, "no server answers at " + shown(host, port) + " (" +
                                        std::strerror(failed) + "); is infinistore running there?"};
}

}  // namespace infinistore
