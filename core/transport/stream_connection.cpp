#include "core/transport/stream_connection.h"

#include <sys/socket.h>

#include <utility>

namespace infinistore {
namespace {

// What a connection with a queue pair takes for itself.
bool exposes_memory(const FrameHeader& header) noexcept {
  return (header.opcode == Opcode::kFill && (header.flags & kFlagFillExposed) != 0) ||
         (header.opcode == Opcode::kGet && (header.flags & kFlagGetExposed) != 0);
}

// Up to here two copies through the socket cost less than what they save: over shared memory DONE,
// which wakes the server (one get of 4 KiB takes a sixth longer with it, measured); over TCP a
// round of the poller.
constexpr std::uint64_t kCopyBytesMax = 16 * 1024;

}  // namespace

void turn_away(int socket, const Error& reason) {
  const auto body = encode(ErrorReply{.code = reason.code, .message = reason.message});
  const auto header = encode_header({.opcode = Opcode::kError,
                                     .flags = 0,
                                     .request_id = 0,
                                     .body_bytes = static_cast<std::uint32_t>(body.size()),
                                     .payload_bytes = 0},
                                    body);
  Body frame(header.begin(), header.end());
  frame.insert(frame.end(), body.begin(), body.end());
  [[maybe_unused]] const auto put =
      ::send(socket, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void StreamConnection::welcome(std::uint64_t request_id, Welcome welcome) {
  send(Opcode::kWelcome, request_id, encode(welcome));
}

void StreamConnection::send(Opcode opcode, std::uint64_t request_id, Body body) {
  check(stream_.send(opcode, request_id, std::move(body)));
}

void StreamConnection::send_payload(Opcode opcode, std::uint64_t request_id, Body body,
                                    Payload& payload, std::uint64_t payload_bytes) {
  check(stream_.send(opcode, request_id, std::move(body), 0, &payload, payload_bytes));
}

bool StreamConnection::send_copy(std::uint64_t request_id, DataReply& data, Pool& pool,
                                 std::uint16_t flags) {
  std::uint64_t bytes = 0;
  for (const auto& item : data.found) bytes += item.bytes;
  if (bytes > kCopyBytesMax) return false;
  const auto extents = std::exchange(data.extents, {});
  Body body = encode(data);
  body.reserve(kHeaderBytes + body.size() + bytes);
  for (const auto& item : extents) {
    for (const auto& extent : item) {
      const auto memory = pool.bytes_of(extent);
      body.insert(body.end(), memory.begin(), memory.end());
    }
  }
  check(stream_.send(Opcode::kData, request_id, std::move(body), flags, nullptr, bytes));
  return true;
}

void StreamConnection::check(Code sent) {
  if (sent == Code::kOverloaded) {
    stream_.close({Code::kOverloaded, "the peer reads its answers too slowly"});
  }
}

void StreamConnection::attach(std::uint64_t request_id, const Endpoints&) {
  send(Opcode::kError, request_id,
       encode(ErrorReply{Code::kSetup, "the server has no RDMA on this connection"}));
}

void StreamConnection::refuse(const Error& reason) {
  if (is_refused_) return;
  is_refused_ = true;
  send(Opcode::kError, 0, encode(ErrorReply{reason.code, reason.message}));
  stream_.part_after_sending(reason);
}

Payload* StreamConnection::break_off(const char* what) {
  owner_.on_violation(what);
  return discard();
}

void StreamConnection::on_garbage(Garbage what) {
  switch (what) {
    case Garbage::kNoFrame:
      break_off("what came is no frame of this protocol");
      break;
    case Garbage::kTls:
      break_off(
          "the client speaks TLS and this server does not; give it --tls-cert-file and "
          "--tls-key-file, or write infinistore:// instead of infinistores://");
      break;
    case Garbage::kPlain:
      break_off(
          "this server speaks TLS and the client does not; write infinistores:// instead of "
          "infinistore://");
      break;
  }
}

Payload* StreamConnection::discard() noexcept {
  if (!discard_) discard_ = std::make_unique<Discard>();
  return discard_.get();
}

Payload* StreamConnection::on_frame(const FrameHeader& header, Bytes body) {
  if (is_refused_) return discard();
  if (header.request_id == 0) return break_off("a request has the id 0");
  if (exposes_memory(header)) {
    return break_off("a request exposes memory, and no queue pair is attached");
  }
  switch (header.opcode) {
    case Opcode::kFill:
      return on_fill(header, body);
    case Opcode::kDone:
      if (!body.empty()) return break_off("DONE has a body");
      on_done(header);
      return nullptr;
    case Opcode::kGoodbye:
      said_goodbye_ = true;
      stream_.close({Code::kClosed, "the client said goodbye"});
      return nullptr;
    default:
      if (header.payload_bytes > 0) return break_off("only FILL has a payload");
      owner_.on_request(header, body);
      return nullptr;
  }
}

}  // namespace infinistore
