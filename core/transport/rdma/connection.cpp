#include "core/transport/rdma/connection.h"

#include <sys/epoll.h>

#include <chrono>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/transport/rdma/exposed_work.h"
#include "core/transport/rdma/server_rail.h"
#include "core/transport/tcp/connection.h"

namespace infinistore {
namespace {

// A client that sees nothing come for long takes the server for stuck: it is told so often that
// bytes move.
constexpr auto kTellEvery = std::chrono::milliseconds(100);

// Of GETs that are not answered yet; more than a session lets be open.
constexpr std::size_t kExposuresMax = 2 * kSessionRequestsMax;

class RdmaConnection final : public TcpConnection, private PollTarget {
 public:
  RdmaConnection(UniqueFd socket, Poller& poller, Pool& pool, RdmaServer* rdma,
                 ConnectionOwner& owner, std::unique_ptr<Tls> tls)
      : TcpConnection(std::move(socket), poller, pool, owner, std::move(tls)),
        poller_(poller),
        rdma_(rdma) {}
  ~RdmaConnection() override { drop_rail(); }

  void welcome(std::uint64_t request_id, Welcome welcome) override {
    if (rdma_ != nullptr) welcome.capabilities |= Welcome::kRdma;
    TcpConnection::welcome(request_id, std::move(welcome));
  }
  void attach(std::uint64_t request_id, const Endpoints& client) override;
  void send(Opcode opcode, std::uint64_t request_id, Body body) override {
    exposures_.erase(request_id);  // what it asked for is answered without it
    TcpConnection::send(opcode, request_id, std::move(body));
  }
  void pull(std::uint64_t request_id, GrantReply grant) override;
  Moved push(std::uint64_t request_id, DataReply data, bool takes_copy) override;
  void refuse(const Error& reason) override {
    drop_rail();
    TcpConnection::refuse(reason);
  }
  bool awaits_peer() const noexcept override {
    return TcpConnection::awaits_peer() || !reads_.empty() || !writes_.empty();
  }
  std::uint64_t moved_bytes() const noexcept override {
    return TcpConnection::moved_bytes() + (rail_ ? rail_->moved_bytes() : 0);
  }

 private:
  Payload* on_frame(const FrameHeader& header, Bytes body) override;
  Payload* on_exposed_get(const FrameHeader& header, Bytes body);
  Payload* on_fill(const FrameHeader& header, Bytes body) override;
  Payload* on_exposed_fill(const FrameHeader& header, Bytes body);
  void on_close(const Error& reason) override {
    drop_rail();
    TcpConnection::on_close(reason);
  }
  void on_ready(std::uint32_t events) override;
  void finish(const WorkQueue::Ended& ended);
  void fail(const ServerRail::Failure& failure);
  void tell_progress();
  void drop_rail() noexcept;

  Poller& poller_;
  RdmaServer* const rdma_;
  std::unique_ptr<ServerRail> rail_;
  std::unordered_map<std::uint64_t, std::vector<Extents>> granted_;      // until FILL
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> reads_;  // their checksums
  std::unordered_map<std::uint64_t, Exposure> exposures_;  // of GETs that are not answered yet
  std::unordered_map<std::uint64_t, DataReply> writes_;
  std::chrono::steady_clock::time_point told_at_{};
};

void RdmaConnection::attach(std::uint64_t request_id, const Endpoints& client) {
  if (rdma_ == nullptr || rail_) {
    TcpConnection::attach(request_id, client);
    return;
  }
  auto made = rdma_->make_rail(client.front(), stream_.fd());
  if (!made) {
    send(Opcode::kError, request_id, encode(ErrorReply{made.code(), made.error().message}));
    return;
  }
  auto rail = std::make_unique<ServerRail>(std::move(*made));
  if (!rail->begin() || !poller_.add(rail->event_fd(), EPOLLIN, *this)) {
    send(Opcode::kError, request_id,
         encode(ErrorReply{Code::kSetup, "the server cannot watch its RDMA device"}));
    return;
  }
  rail_ = std::move(rail);
  send(Opcode::kAttached, request_id, encode(Endpoints{rail_->endpoint()}));
}

// ---- puts ----

void RdmaConnection::pull(std::uint64_t request_id, GrantReply grant) {
  if (rail_ && stream_.is_open()) granted_[request_id] = grant.extents;
  TcpConnection::pull(request_id, std::move(grant));
}

Payload* RdmaConnection::on_fill(const FrameHeader& header, Bytes body) {
  granted_.erase(header.request_id);
  return TcpConnection::on_fill(header, body);
}

Payload* RdmaConnection::on_exposed_fill(const FrameHeader& header, Bytes body) {
  if (header.payload_bytes > 0 || header.flags != kFlagFillExposed) {
    return break_off("FILL exposes memory and has a payload, or is cancelled");
  }
  const auto exposed = decode_exposed(body, 1);
  auto fill = exposed ? decode_fill(exposed->rest, true) : std::nullopt;
  if (!fill) return break_off("FILL is malformed");
  const auto found = granted_.find(header.request_id);
  if (found == granted_.end() || pull_state(header.request_id) == PullState::kUnknown) {
    owner_.on_late();
    return nullptr;
  }
  if (pull_state(header.request_id) == PullState::kFilling) return break_off("FILL comes twice");
  const auto extents = std::move(found->second);
  granted_.erase(found);
  forget_pull(header.request_id);
  if (fill->checksums.size() != extents.size()) {
    return break_off("FILL has not the count that was granted");
  }
  Work work{.request_id = header.request_id, .direction = Direction::kRead, .pieces = {}};
  ExposedCursor at(exposed->exposure);
  for (const auto& item : extents) {
    const auto added = add_item(item, at, rail_->memory(), work);
    if (!added && added.code() != Code::kSetup) return break_off("FILL exposes another size");
    if (!added) {
      owner_.on_failure(added.error());
      return nullptr;
    }
  }
  if (!at.at_end()) return break_off("FILL exposes another size");
  reads_.emplace(header.request_id, std::move(fill->checksums));
  const auto failure = rail_->add(std::move(work));
  if (failure) fail(*failure);
  return nullptr;
}

// ---- gets ----

Payload* RdmaConnection::on_frame(const FrameHeader& header, Bytes body) {
  if (rail_ && !is_refused()) {
    const bool gets = header.opcode == Opcode::kGet && (header.flags & kFlagGetExposed) != 0;
    const bool fills = header.opcode == Opcode::kFill && (header.flags & kFlagFillExposed) != 0;
    if (gets) return on_exposed_get(header, body);
    if (fills) return on_exposed_fill(header, body);
  }
  return TcpConnection::on_frame(header, body);
}

Payload* RdmaConnection::on_exposed_get(const FrameHeader& header, Bytes body) {
  auto exposed = decode_exposed(body, 1);
  if (!exposed) return break_off("GET exposes memory and is malformed");
  if (exposures_.size() >= kExposuresMax) return break_off("too many GETs expose memory");
  exposures_.insert_or_assign(header.request_id, std::move(exposed->exposure));
  FrameHeader inner = header;
  inner.flags = static_cast<std::uint16_t>(header.flags & ~kFlagGetExposed);
  return TcpConnection::on_frame(inner, exposed->rest);
}

Moved RdmaConnection::push(std::uint64_t request_id, DataReply data, bool takes_copy) {
  const auto node = exposures_.extract(request_id);
  if (!rail_ || node.empty() || !stream_.is_open()) {
    return TcpConnection::push(request_id, std::move(data), takes_copy);
  }
  if (send_copy(request_id, data, pool_, 0)) return Moved::kAll;
  Work work{.request_id = request_id, .direction = Direction::kWrite, .pieces = {}};
  ExposedCursor at(node.mapped());
  std::size_t found = 0;
  for (const auto outcome : data.outcomes) {
    if (outcome != Code::kOk) {
      at.skip_item();
      continue;
    }
    if (!add_item(data.extents[found++], at, rail_->memory(), work)) {
      // What cannot be placed can be sent; a client that exposed too little takes it as it comes.
      return TcpConnection::push(request_id, std::move(data), takes_copy);
    }
  }
  data.extents.clear();
  writes_.emplace(request_id, std::move(data));
  const auto failure = rail_->add(std::move(work));
  if (failure) {  // in one of the owner's own calls, who hears of the end later
    send(Opcode::kError, 0, encode(ErrorReply{failure->error.code, failure->error.message}));
    stream_.close_after_sending(failure->error);
    drop_rail();
  }
  return Moved::kLater;
}

// ---- what the device tells ----

void RdmaConnection::on_ready(std::uint32_t) {
  std::vector<WorkQueue::Ended> ended;
  const auto failure = rail_->take_completions(ended);
  for (const auto& one : ended) finish(one);
  if (failure && rail_) {
    fail(*failure);
  } else {
    tell_progress();
  }
  deliver();
}

void RdmaConnection::finish(const WorkQueue::Ended& ended) {
  if (!rail_) return;  // one before it has ended the connection
  told_at_ = std::chrono::steady_clock::now();
  if (ended.direction == Direction::kRead) {
    const auto checksums = std::move(reads_.extract(ended.request_id).mapped());
    owner_.on_pulled(ended.request_id, Code::kOk, checksums);
    return;
  }
  const auto reply = std::move(writes_.extract(ended.request_id).mapped());
  send_flagged(Opcode::kData, ended.request_id, encode(reply), kFlagDataPlaced);
  owner_.on_pushed(ended.request_id);
}

// Exactly one request is to blame; the others end with the connection, and may come again.
void RdmaConnection::fail(const ServerRail::Failure& failure) {
  drop_rail();
  if (failure.request_id) {
    send(Opcode::kError, *failure.request_id,
         encode(ErrorReply{failure.error.code, failure.error.message}));
  }
  owner_.on_failure({Code::kDisconnected,
                     "the queue pair of this connection has failed: " + failure.error.message});
}

void RdmaConnection::tell_progress() {
  const auto now = std::chrono::steady_clock::now();
  if (now - told_at_ < kTellEvery || (reads_.empty() && writes_.empty())) return;
  told_at_ = now;
  send(Opcode::kMoving, reads_.empty() ? writes_.begin()->first : reads_.begin()->first, {});
}

void RdmaConnection::drop_rail() noexcept {
  if (!rail_) return;
  poller_.remove(rail_->event_fd(), *this);
  rail_.reset();
}

}  // namespace

std::unique_ptr<Connection> make_rdma_connection(UniqueFd socket, Poller& poller, Pool& pool,
                                                 RdmaServer* rdma, ConnectionOwner& owner,
                                                 std::unique_ptr<Tls> tls) {
  return std::make_unique<RdmaConnection>(std::move(socket), poller, pool, rdma, owner,
                                          std::move(tls));
}

}  // namespace infinistore
