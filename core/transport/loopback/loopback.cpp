#include "core/transport/loopback/loopback.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>
#include <vector>

namespace infinistore {
namespace {

void make_pair(UniqueFd& one, UniqueFd& other) {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) != 0) {
    throw std::system_error(errno, std::generic_category(), "socketpair");
  }
  one = UniqueFd(fds[0]);
  other = UniqueFd(fds[1]);
}

// For poll(): the first of two waits, of which a negative one is for ever.
int sooner_ms(Nanos one, Nanos other) {
  if (one < 0 || (other >= 0 && other < one)) std::swap(one, other);
  return one < 0 ? -1 : static_cast<int>((one + kMillisecond - 1) / kMillisecond);
}

}  // namespace

// One way of the stream: at most one piece is held between its two sockets.
class Loopback::Direction {
 public:
  Direction(int from, int to, const LoopbackFaults& faults)
      : from_(from), to_(to), faults_(faults), piece_(faults.piece_bytes_max) {}

  pollfd interest(Nanos now) const noexcept {
    if (held_ == 0) return {.fd = from_, .events = POLLIN, .revents = 0};
    return {.fd = now >= due_ ? to_ : -1, .events = POLLOUT, .revents = 0};
  }
  Nanos wait(Nanos now) const noexcept { return held_ > 0 && due_ > now ? due_ - now : -1; }
  // Goes on if its socket is ready, or if it may be once a delay is over.  False: the stream ends.
  bool step_if(bool is_ready, Nanos now) {
    if (held_ > 0) return give(now);
    return !is_ready || take(now);
  }

 private:
  bool take(Nanos now) {
    const auto got = ::read(from_, piece_.data(), piece_.size());
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    held_ = static_cast<std::size_t>(got);
    begin_ = 0;
    due_ = now + faults_.delay;
    if (faults_.corrupt_at >= position_ && faults_.corrupt_at - position_ < held_) {
      piece_[faults_.corrupt_at - position_] ^= std::byte{0xFF};
    }
    return true;
  }
  bool give(Nanos now) {
    if (now < due_) return true;
    std::size_t step = held_ - begin_;
    if (faults_.cut_at != LoopbackFaults::kNever) {
      step = std::min<std::size_t>(step, faults_.cut_at - position_);
    }
    if (position_ < faults_.drop_from) {
      step = static_cast<std::size_t>(std::min<std::uint64_t>(step, faults_.drop_from - position_));
      const auto put = step == 0 ? 0 : ::send(to_, piece_.data() + begin_, step, MSG_NOSIGNAL);
      if (put < 0) return errno == EAGAIN || errno == EINTR;
      step = static_cast<std::size_t>(put);
    }
    position_ += step;
    begin_ += step;
    if (begin_ == held_) held_ = 0;
    return position_ < faults_.cut_at;
  }

  int from_;
  int to_;
  const LoopbackFaults& faults_;
  std::vector<std::byte> piece_;
  std::size_t held_ = 0;   // bytes in piece_
  std::size_t begin_ = 0;  // of them, handed on
  std::uint64_t position_ = 0;
  Nanos due_ = 0;
};

Loopback::Loopback(const Options& options) : options_(options) {
  make_pair(client_end_, client_side_);
  make_pair(server_end_, server_side_);
  wakeup_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeup_) throw std::system_error(errno, std::generic_category(), "eventfd");
  thread_ = std::thread([this] { carry(); });
}

Loopback::~Loopback() {
  is_stopping_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto put = ::write(wakeup_.get(), &one, sizeof one);
  thread_.join();
}

void Loopback::carry() {
  const MonotonicClock clock;
  Direction to_server(client_side_.get(), server_side_.get(), options_.to_server);
  Direction to_client(server_side_.get(), client_side_.get(), options_.to_client);
  bool is_open = true;
  while (is_open && !is_stopping_) {
    const Nanos now = clock.now();
    std::array<pollfd, 3> fds = {to_server.interest(now), to_client.interest(now),
                                 pollfd{.fd = wakeup_.get(), .events = POLLIN, .revents = 0}};
    const int timeout_ms = sooner_ms(to_server.wait(now), to_client.wait(now));
    if (::poll(fds.data(), fds.size(), timeout_ms) < 0 && errno != EINTR) break;
    const Nanos later = clock.now();
    is_open = to_server.step_if(fds[0].revents != 0, later) &&
              to_client.step_if(fds[1].revents != 0, later);
  }
  client_side_.reset();
  server_side_.reset();
}

}  // namespace infinistore
