#include "core/transport/tcp/client_dial.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace infinistore {
namespace {

// A peer that vanished without a word is noticed after about so long, even with no request open.
constexpr int kKeepAliveIdleS = 10;
constexpr int kKeepAliveEveryS = 5;
constexpr int kKeepAliveCount = 3;

struct FreeAddresses {
  void operator()(addrinfo* list) const noexcept { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Result<Addresses> resolve(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG;
  addrinfo* list = nullptr;
  const auto service = std::to_string(port);
  int failed = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &list);
  if (failed != 0) {
    hints.ai_flags = AI_NUMERICSERV;  // a machine with nothing but loopback has no "configured" one
    failed = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &list);
  }
  if (failed != 0) {
    return Error{Code::kDisconnected, "host " + host + " is unknown: " + ::gai_strerror(failed)};
  }
  return Addresses(list);
}

void set_option(int fd, int level, int name, int value) noexcept {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

// 0, or errno.
int connect_one(int fd, const addrinfo& address, DialDeadline deadline) noexcept {
  if (::connect(fd, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_ready(fd, POLLOUT, deadline)) return ETIMEDOUT;
  int failed = 0;
  socklen_t size = sizeof failed;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) != 0) return errno;
  return failed;
}

}  // namespace

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
  auto addresses = resolve(host, port);
  if (!addresses) return addresses.error();
  int failed = EADDRNOTAVAIL;
  for (const addrinfo* at = addresses->get(); at != nullptr; at = at->ai_next) {
    UniqueFd fd(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) {
      failed = errno;
      continue;
    }
    failed = connect_one(fd.get(), *at, deadline);
    if (failed != 0) continue;
    // Frames are written whole: waiting to join them with later ones only adds latency.
    set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd.get(), IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleS);
    set_option(fd.get(), IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveEveryS);
    set_option(fd.get(), IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveCount);
    return fd;
  }
  const bool is_v6 = host.find(':') != std::string::npos;
  return Error{Code::kDisconnected, "no server answers at " + (is_v6 ? "[" + host + "]" : host) +
                                        ":" + std::to_string(port) + " (" + std::strerror(failed) +
                                        "); is infinistore running there?"};
}

}  // namespace infinistore
