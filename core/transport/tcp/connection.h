#pragma once
// The server's half over TCP: payloads travel in the stream, straight between socket and pool.

#include <memory>
#include <unordered_map>
#include <vector>

#include "core/transport/stream_connection.h"

namespace infinistore {

class TcpConnection : public StreamConnection {
 public:
  TcpConnection(UniqueFd socket, Poller& poller, Pool& pool, ConnectionOwner& owner,
                std::unique_ptr<Tls> tls)
      : StreamConnection(std::move(socket), poller, owner, std::move(tls)), pool_(pool) {}

  void pull(std::uint64_t request_id, GrantReply grant) override;
  Moved push(std::uint64_t request_id, DataReply data, bool takes_copy) override;
  ReplyLimits limits() const noexcept override {
    return {.payload_bytes = kPayloadBytesMax - kBatchKeysMax * sizeof(std::uint64_t),
            .has_extents = false};
  }
  bool awaits_peer() const noexcept override { return !pulls_.empty() || !pushes_.empty(); }

 protected:
  Payload* on_fill(const FrameHeader& header, Bytes body) override;

  enum class PullState { kUnknown, kGranted, kFilling };
  PullState pull_state(std::uint64_t request_id) const noexcept;
  // Of one that is granted: its bytes come another way.
  void forget_pull(std::uint64_t request_id) noexcept { pulls_.erase(request_id); }

  Pool& pool_;

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
  void on_done(const FrameHeader&) override { owner_.on_late(); }
  void on_payload(const FrameHeader& header) override;
  void on_sent(std::uint64_t request_id) override;

  std::unordered_map<std::uint64_t, Pull> pulls_;
  std::unordered_map<std::uint64_t, Push> pushes_;
};

// `tls`: of that socket, or nullptr.
std::unique_ptr<Connection> make_tcp_connection(UniqueFd socket, Poller& poller, Pool& pool,
                                                ConnectionOwner& owner, std::unique_ptr<Tls> tls);

}  // namespace infinistore
