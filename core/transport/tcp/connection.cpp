#include "core/transport/tcp/connection.h"

#include <utility>

#include "core/base/check.h"

namespace infinistore {
TcpConnection::PullState TcpConnection::pull_state(std::uint64_t request_id) const noexcept {
  const auto found = pulls_.find(request_id);
  if (found == pulls_.end()) return PullState::kUnknown;
  return found->second.is_filling ? PullState::kFilling : PullState::kGranted;
}

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

std::unique_ptr<Connection> make_tcp_connection(UniqueFd socket, Poller& poller, Pool& pool,
                                                ConnectionOwner& owner, std::unique_ptr<Tls> tls) {
  return std::make_unique<TcpConnection>(std::move(socket), poller, pool, owner, std::move(tls));
}

}  // namespace infinistore
