#pragma once
// StreamConnection: what all connections over a stream socket share: frames, ends, errors.

#include <memory>

#include "core/transport/connection.h"
#include "core/transport/stream.h"

namespace infinistore {

// Tells a peer that gets no connection why, if the socket's buffer takes it, which an empty one
// does.
void turn_away(int socket, const Error& reason);

class StreamConnection : public Connection, protected StreamOwner {
 public:
  StreamConnection(UniqueFd socket, Poller& poller, ConnectionOwner& owner,
                   std::unique_ptr<Tls> tls = nullptr)
      : owner_(owner), stream_(std::move(socket), poller, *this, std::move(tls)) {}

  void welcome(std::uint64_t request_id, Welcome welcome) override;
  void send(Opcode opcode, std::uint64_t request_id, Body body) override;
  void attach(std::uint64_t request_id, const Endpoints& client) override;
  void refuse(const Error& reason) override;
  void close(Error reason) override { stream_.close(std::move(reason)); }
  void deliver() override { stream_.deliver(); }
  std::uint64_t moved_bytes() const noexcept override { return stream_.moved_bytes(); }
  UniqueFd take_fence() noexcept override { return {}; }

 protected:
  // FILL and DONE; `on_fill` answers where the payload goes, as StreamOwner::on_frame does.
  virtual Payload* on_fill(const FrameHeader& header, Bytes body) = 0;
  virtual void on_done(const FrameHeader& header) = 0;

  Payload* on_frame(const FrameHeader& header, Bytes body) override;
  void on_garbage(Garbage what) override;
  void on_payload(const FrameHeader&) override {}
  void on_sent(std::uint64_t) override {}
  void on_close(const Error& reason) override { owner_.on_close(reason); }

  void send_flagged(Opcode opcode, std::uint64_t request_id, Body body, std::uint16_t flags) {
    check(stream_.send(opcode, request_id, std::move(body), flags));
  }
  void send_payload(Opcode opcode, std::uint64_t request_id, Body body, Payload& payload,
                    std::uint64_t payload_bytes);
  // DATA with the bytes of its extents in the same piece of memory; false: there are too many.
  bool send_copy(std::uint64_t request_id, DataReply& data, Pool& pool, std::uint16_t flags);
  // The peer broke the protocol; returned from on_fill() it is also the refusal of the payload.
  Payload* break_off(const char* what);
  Payload* discard() noexcept;
  bool said_goodbye() const noexcept { return said_goodbye_; }
  bool is_refused() const noexcept { return is_refused_; }

  ConnectionOwner& owner_;
  Stream stream_;

 private:
  void check(Code sent);

  std::unique_ptr<Discard> discard_;  // made when first needed: it is large
  bool is_refused_ = false;
  bool said_goodbye_ = false;
};

}  // namespace infinistore
