#include "core/transport/tcp/listen.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace infinistore {
namespace {

constexpr int kBacklog = 1024;
constexpr int kKeepIdleSeconds = 30;
constexpr int kKeepIntervalSeconds = 10;
constexpr int kKeepCount = 3;
constexpr int kUnackedMillisecondsMax = 60'000;

void set(int socket, int level, int name, int value) noexcept {
  ::setsockopt(socket, level, name, &value, sizeof value);
}

std::uint16_t bound_port(int socket) noexcept {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

Error refusal(const std::string& host, std::uint16_t port, int error) {
  const std::string where = host + " port " + std::to_string(port);
  std::string text = "cannot listen on " + where + ": " + std::strerror(error);
  if (error == EADDRINUSE) {
    text = "port " + std::to_string(port) + " of " + host +
           " is in use; stop the process that has it (ss -ltnp), or give another --port (0 takes a "
           "free one)";
  } else if (error == EACCES) {
    text += "; ports below 1024 need privileges, give another --port";
  } else if (error == EADDRNOTAVAIL) {
    text += "; give an address of this machine, such as 127.0.0.1";
  }
  return {Code::kSetup, text};
}

UniqueFd listen_at(const addrinfo& address) noexcept {
  UniqueFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {};
  set(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.ai_family == AF_INET6) set(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    const int error = errno;
    socket.reset();
    errno = error;
  }
  return socket;
}

}  // namespace

Result<TcpListener> listen_tcp(const std::string& host, std::uint16_t port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* raw = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &raw);
  if (failure != 0) {
    return Error{Code::kSetup, "host '" + host + "': " + ::gai_strerror(failure) +
                                   "; give an address of this machine, such as 127.0.0.1"};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(raw, &::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    auto socket = listen_at(*at);
    if (socket) {
      const auto chosen = bound_port(socket.get());
      return TcpListener{std::move(socket), chosen};
    }
    error = errno;
  }
  return refusal(host, port, error);
}

void tune_tcp(int socket) noexcept {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepCount);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnackedMillisecondsMax);
}

}  // namespace infinistore
