#include "core/server/acceptor.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace infinistore {
namespace {

constexpr int kAcceptsAtOnce = 64;  // then those who are served already get their turn

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
    if (accepted) {
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
