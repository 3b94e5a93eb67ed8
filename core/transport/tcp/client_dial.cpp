#include "core/transport/tcp/client_dial.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <shared_mutex>
#include <vector>

namespace infinistore {
namespace {

// A peer that vanished without a word is noticed after about so long, even with no request open.
constexpr int kKeepAliveIdleS = 10;
constexpr int kKeepAliveEveryS = 5;
constexpr int kKeepAliveCount = 3;

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};
using Addresses = std::vector<Address>;

template <class Sockaddr>
Addresses address_of(const Sockaddr& one) {
  Addresses found(1);
  std::memcpy(&found[0].bytes, &one, sizeof one);
  found[0].size = sizeof one;
  return found;
}

// Of a host that is given as a number; empty: it is a name.
Addresses read_number(const std::string& host, std::uint16_t port) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) return address_of(v4);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  if (::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) return address_of(v6);
  return {};
}

// Shared by the threads that look up names, and waited for by fork(): glibc takes locks of its own
// meanwhile, which a child born then would find taken for ever, and never connect.
std::shared_mutex& resolving() {
  static std::shared_mutex mutex;
  return mutex;
}
void before_fork() { resolving().lock(); }
void in_parent() { resolving().unlock(); }
// New, not unlocked: the parent's threads that waited for it are counted in it, and are not here.
void in_child() { std::construct_at(&resolving()); }

struct FreeList {
  void operator()(addrinfo* list) const noexcept { ::freeaddrinfo(list); }
};

Result<Addresses> resolve(const std::string& host, std::uint16_t port) {
  auto number = read_number(host, port);
  if (!number.empty()) return number;
  [[maybe_unused]] static const int guarded = ::pthread_atfork(&before_fork, &in_parent, &in_child);
  const std::shared_lock lock(resolving());
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
  const std::unique_ptr<addrinfo, FreeList> owner(list);
  Addresses found;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    if (at->ai_addrlen > sizeof(sockaddr_storage)) continue;
    auto& address = found.emplace_back();
    std::memcpy(&address.bytes, at->ai_addr, at->ai_addrlen);
    address.size = at->ai_addrlen;
  }
  return found;
}

void set_option(int fd, int level, int name, int value) noexcept {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

// 0, or errno.
int connect_one(int fd, const Address& address, DialDeadline deadline) noexcept {
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
  const bool is_v6 = host.find(':') != std::string::npos;
  return Error{Code::kDisconnected, "no server answers at " + (is_v6 ? "[" + host + "]" : host) +
                                        ":" + std::to_string(port) + " (" + std::strerror(failed) +
                                        "); is infinistore running there?"};
}

}  // namespace infinistore
