#include "core/transport/shm/listen.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace infinistore {
namespace {

constexpr int kBacklog = 1024;

Error refusal(const std::string& path, const char* what) {
  return {Code::kSetup, "cannot listen on the unix socket " + path + ": " + what +
                            "; give --unix-socket PATH, or --unix-socket none for TCP only"};
}

bool is_abandoned(const sockaddr_un& address) noexcept {
  const UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto* plain = reinterpret_cast<const sockaddr*>(&address);
  return probe && ::connect(probe.get(), plain, sizeof address) != 0 && errno == ECONNREFUSED;
}

}  // namespace

Result<UniqueFd> listen_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return refusal(path, "the path is too long");
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return refusal(path, std::strerror(errno));
  // On Linux the file takes the mode of the socket: it is never wider, not even for a moment.
  ::fchmod(socket.get(), S_IRUSR | S_IWUSR);
  const auto* plain = reinterpret_cast<const sockaddr*>(&address);
  int failed = ::bind(socket.get(), plain, sizeof address);
  if (failed != 0 && errno == EADDRINUSE && is_abandoned(address)) {
    ::unlink(path.c_str());
    failed = ::bind(socket.get(), plain, sizeof address);
  }
  if (failed != 0) return refusal(path, std::strerror(errno));
  if (::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || ::listen(socket.get(), kBacklog) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    return refusal(path, std::strerror(error));
  }
  return socket;
}

}  // namespace infinistore
