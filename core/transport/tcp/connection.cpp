#include "core/transport/tcp/connection.h"

#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/transport/stream_connection.h"

namespace infinistore {
namespace {

class TcpConnection final : public StreamConnection {
 public:
  TcpConnection(UniqueFd socket, Poller& poller, Pool& pool, ConnectionOwner& owner)
      : StreamConnection(std::move(socket), poller, owner), pool_(pool) {}

  void pull(std::uint64_t request_id, GrantReply grant) override;
  Moved push(std::uint64_t request_id, DataReply data, bool takes_copy) override;
  ReplyLimits limits() const noexcept override {
    return {.payload_bytes = kPayloadBytesMax - kBatchKeysMax * sizeof(std::uint64_t),
            .has_extents = false};
  }
  bool awaits_peer() const noexcept override { return !pulls_.empty() || !pushes_.empty(); }

 private:
  struct Pull {
    Scatter places;                        // the extents, then the checksums
    std::vector<std::uint64_t> checksums;  // received behind the bytes
    std::uint64_t bytes = 0;
    bool is_filling = false;
  };
  struct Push {
    Scatter pieces;
    std::uint64_t bytes = 0;
  };

  std::uint64_t add_pieces(const std::vector<Extents>& items, Scatter& pieces);
  Payload* on_fill(const FrameHeader& header, Bytes body) override;
  void on_done(const FrameHeader&) override { owner_.on_late(); }
  void on_payload(const FrameHeader& header) override;
  void on_sent(std::uint64_t request_id) override;

  Pool& pool_;
  std::unordered_map<std::uint64_t, Pull> pulls_;
  std::unordered_map<std::uint64_t, Push> pushes_;
};

std::uint64_t TcpConnection::add_pieces(const std::vector<Extents>& items, Scatter& pieces) {
  std::uint64_t bytes = 0;
  for (const auto& item : items) {
    for (const auto& extent : item) {
      const auto memory = pool_.bytes_of(extent);
      pieces.add(memory.data(), memory.size());
      bytes += memory.size();
    }
  }
  return bytes;
}

void TcpConnection::pull(std::uint64_t request_id, GrantReply grant) {
  if (!stream_.is_open()) return;
  Pull& pull = pulls_[request_id];
  pull.checksums.resize(grant.extents.size());
  pull.bytes = add_pieces(grant.extents, pull.places);
  const auto sums = std::as_bytes(std::span(pull.checksums));
  pull.places.add(sums.data(), sums.size());
  pull.bytes += sums.size();
  grant.extents.clear();
  send(Opcode::kGrant, request_id, encode(grant));
}

Payload* TcpConnection::on_fill(const FrameHeader& header, Bytes body) {
  const auto fill = decode_fill(body, false);
  if (!fill) return break_off("FILL is malformed");
  const auto found = pulls_.find(header.request_id);
  const bool is_cancelled = (header.flags & kFlagFillCancelled) != 0;
  if (is_cancelled && header.payload_bytes > 0) {
    return break_off("a cancelled FILL has a payload");
  }
  if (found == pulls_.end()) {
    owner_.on_late();
    return discard();
  }
  auto& pull = found->second;
  if (pull.is_filling) return break_off("FILL comes twice");
  if (is_cancelled) {
    pulls_.erase(found);
    owner_.on_pulled(header.request_id, Code::kCancelled, {});
    return nullptr;
  }
  if (fill->granted_count != pull.checksums.size() || header.payload_bytes != pull.bytes) {
    return break_off("FILL has not the size that was granted");
  }
  pull.is_filling = true;
  return &pull.places;
}

void TcpConnection::on_payload(const FrameHeader& header) {
  const auto found = pulls_.find(header.request_id);
  if (found == pulls_.end() || !found->second.is_filling) return;  // it was discarded
  const auto checksums = std::move(found->second.checksums);
  pulls_.erase(found);
  owner_.on_pulled(header.request_id, Code::kOk, checksums);
}

Moved TcpConnection::push(std::uint64_t request_id, DataReply data, bool) {
  if (!stream_.is_open()) return Moved::kLater;
  if (send_copy(request_id, data, pool_, 0)) return Moved::kAll;
  Push& push = pushes_[request_id];
  push.bytes = add_pieces(data.extents, push.pieces);
  KV_CHECK(push.bytes > 0);
  data.extents.clear();
  send_payload(Opcode::kData, request_id, encode(data), push.pieces, push.bytes);
  return Moved::kLater;
}

void TcpConnection::on_sent(std::uint64_t request_id) {
  pushes_.erase(request_id);
  owner_.on_pushed(request_id);
}

}  // namespace

std::unique_ptr<Connection> make_tcp_connection(UniqueFd socket, Poller& poller, Pool& pool,
                                                ConnectionOwner& owner) {
  return std::make_unique<TcpConnection>(std::move(socket), poller, pool, owner);
}

}  // namespace infinistore
