#include "core/transport/shm/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/transport/stream_connection.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace infinistore {
namespace {

// The process that connected.  By SO_PEERPIDFD it is that very process; an older kernel tells only
// a number, which could have been given to another process since the connection began.
UniqueFd open_peer(int socket) noexcept {
  int fd = -1;
  socklen_t size = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0 && fd >= 0) {
    return UniqueFd(fd);
  }
  ucred peer{};
  size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return {};
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
}

class ShmConnection final : public StreamConnection, private PollTarget {
 public:
  ShmConnection(UniqueFd socket, UniqueFd peer, Poller& poller, Pool& pool, ConnectionOwner& owner)
      : StreamConnection(std::move(socket), poller, owner),
        poller_(poller),
        pool_(pool),
        peer_(std::move(peer)) {
    if (!poller_.add(peer_.get(), EPOLLIN, *this)) {
      stream_.close({Code::kSetup, "the system has no room to watch another process"});
    }
  }
  ~ShmConnection() override { forget_peer(); }

  void welcome(std::uint64_t request_id, Welcome welcome) override;
  void pull(std::uint64_t request_id, GrantReply grant) override;
  Moved push(std::uint64_t request_id, DataReply data, bool takes_copy) override;
  ReplyLimits limits() const noexcept override {
    return {.payload_bytes = ~std::uint64_t{0}, .has_extents = true};
  }
  // A reader may take its time: what it holds is pinned by its own wish.
  bool awaits_peer() const noexcept override { return !pulls_.empty(); }
  UniqueFd take_fence() noexcept override;

 private:
  Payload* on_fill(const FrameHeader& header, Bytes body) override;
  void on_done(const FrameHeader& header) override;
  void on_ready(std::uint32_t events) override;  // the peer's process has ended
  void forget_peer() noexcept {
    if (peer_) poller_.remove(peer_.get(), *this);
  }

  Poller& poller_;
  Pool& pool_;
  UniqueFd peer_;
  bool is_peer_dead_ = false;
  std::unordered_map<std::uint64_t, std::size_t> pulls_;  // request id -> granted items
  std::unordered_set<std::uint64_t> pushes_;
};

void ShmConnection::welcome(std::uint64_t request_id, Welcome welcome) {
  const bool reads_only = (welcome.capabilities & Welcome::kReadOnly) != 0;
  welcome.capabilities |= Welcome::kSharedMemory;
  std::vector<int> fds;
  for (std::uint32_t region = 0; region < pool_.region_count(); ++region) {
    welcome.region_bytes.push_back(pool_.region_bytes(region));
    fds.push_back(reads_only ? pool_.region_read_only_fd(region) : pool_.region_fd(region));
    if (fds.back() < 0) {
      owner_.on_failure(
          {Code::kSetup, "the server has no /proc, without which no reader maps its memory"});
      return;
    }
  }
  stream_.attach_fds(std::move(fds));
  send(Opcode::kWelcome, request_id, encode(welcome));
}

void ShmConnection::pull(std::uint64_t request_id, GrantReply grant) {
  if (!stream_.is_open()) return;
  pulls_[request_id] = grant.extents.size();
  send(Opcode::kGrant, request_id, encode(grant));
}

Payload* ShmConnection::on_fill(const FrameHeader& header, Bytes body) {
  if (header.payload_bytes > 0) return break_off("FILL has a payload on shared memory");
  const bool is_cancelled = (header.flags & kFlagFillCancelled) != 0;
  auto fill = decode_fill(body, true);
  // Cancelled, it says only that the client has stopped writing: it may leave the sums away.
  if (!fill && is_cancelled) fill = decode_fill(body, false);
  if (!fill) return break_off("FILL is malformed");
  const auto found = pulls_.find(header.request_id);
  if (found == pulls_.end()) {
    owner_.on_late();
    return nullptr;
  }
  if (!is_cancelled && fill->checksums.size() != found->second) {
    return break_off("FILL has not the count that was granted");
  }
  pulls_.erase(found);
  owner_.on_pulled(header.request_id, is_cancelled ? Code::kCancelled : Code::kOk, fill->checksums);
  return nullptr;
}

Moved ShmConnection::push(std::uint64_t request_id, DataReply data, bool takes_copy) {
  if (!stream_.is_open()) return Moved::kLater;
  if (takes_copy && send_copy(request_id, data, pool_, kFlagDataCopied)) return Moved::kAll;
  pushes_.insert(request_id);
  send(Opcode::kData, request_id, encode(data));
  return Moved::kLater;
}

void ShmConnection::on_done(const FrameHeader& header) {
  if (pushes_.erase(header.request_id) == 0) {
    owner_.on_late();
  } else {
    owner_.on_pushed(header.request_id);
  }
}

void ShmConnection::on_ready(std::uint32_t) {
  is_peer_dead_ = true;
  poller_.remove(peer_.get(), *this);  // it stays readable
  // What the dead client still sent (a last FILL) is not worth more than its memory back at once.
  stream_.close({Code::kDisconnected, "the client's process has ended"});
  stream_.deliver();
}

UniqueFd ShmConnection::take_fence() noexcept {
  if (said_goodbye() || is_peer_dead_ || pulls_.empty()) return {};
  forget_peer();
  return std::move(peer_);
}

}  // namespace

Result<std::unique_ptr<Connection>> make_shm_connection(UniqueFd socket, Poller& poller, Pool& pool,
                                                        ConnectionOwner& owner) {
  auto peer = open_peer(socket.get());
  if (!peer) {
    Error reason{Code::kOverloaded, std::string("the client's process cannot be watched (") +
                                        std::strerror(errno) + "); raise the server's ulimit -n"};
    turn_away(socket.get(), reason);
    return reason;
  }
  return std::unique_ptr<Connection>(
      std::make_unique<ShmConnection>(std::move(socket), std::move(peer), poller, pool, owner));
}

}  // namespace infinistore
