#include "core/server/acceptor.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/base/limits.h"

namespace infinistore {
namespace {

constexpr int kAcceptsAtOnce = 64;  // then those who are served already get their turn

// Descriptors are given from the lowest on: a high one says that few are left, and those are the
// rest of the process's (who asks the admin port why sessions are refused must get an answer).
bool is_kept_for_others(int descriptor) noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  const rlim_t kept = std::min<rlim_t>(kDescriptorsKept, limit.rlim_cur / 8);
  return static_cast<rlim_t>(descriptor) >= limit.rlim_cur - kept;
}

}  // namespace

Acceptor::Acceptor(UniqueFd socket, const Transport& transport, Poller& poller, Take take,
                   Shed shed)
    : socket_(std::move(socket)),
      spare_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      transport_(transport),
      poller_(poller),
      take_(std::move(take)),
      shed_(std::move(shed)) {
  if (!spare_ || !poller_.add(socket_.get(), EPOLLIN, *this)) {
    throw std::system_error(errno, std::generic_category(), "watching a listening socket");
  }
}

Acceptor::~Acceptor() { poller_.remove(socket_.get(), *this); }

void Acceptor::on_ready(std::uint32_t) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    UniqueFd accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (accepted && is_kept_for_others(accepted.get())) {
      shed_(accepted.get());
    } else if (accepted) {
      take_(transport_, std::move(accepted));
    } else if (errno == EMFILE || errno == ENFILE) {
      shed();
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

// Without this a full table of descriptors would leave the socket readable and the thread spinning,
// and the client waiting.
void Acceptor::shed() {
  spare_.reset();
  {
    const UniqueFd refused(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (refused) shed_(refused.get());
  }
  spare_ = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

}  // namespace infinistore
