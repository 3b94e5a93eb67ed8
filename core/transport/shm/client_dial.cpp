#include "core/transport/shm/client_dial.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <thread>

namespace infinistore {

// A path that begins with NUL or '@' would name an abstract socket; ours are files.
Result<UniqueFd> dial_unix(const std::string& path, DialDeadline deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.front() != '/' || path.size() >= sizeof address.sun_path ||
      path.find('\0') != std::string::npos) {
    return Error{Code::kProtocol, "the server's unix socket has no usable path"};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return no_descriptor_left("the unix socket");
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    // EAGAIN: the server's queue of connections is full, and poll() would not wait for room.
    if (errno == EINTR) continue;
    if (errno != EAGAIN || std::chrono::steady_clock::now() >= deadline) {
      return Error{Code::kDisconnected, path + ": " + std::strerror(errno)};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return fd;
}

}  // namespace infinistore
