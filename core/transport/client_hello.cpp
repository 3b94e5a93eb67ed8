#include "core/transport/client_hello.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "core/base/limits.h"
#include "core/wire/codec.h"
#include "core/wire/frame.h"

namespace infinistore {
namespace {

constexpr std::uint64_t kHelloRequestId = 1;
constexpr std::size_t kWelcomeBytesMax = 16 * 1024;

Error lost(int cause) {
  return {Code::kDisconnected, cause == 0 ? std::string("the server closed the connection instead "
                                                        "of answering HELLO")
                                          : std::string(std::strerror(cause))};
}
Error late() { return {Code::kTimeout, "the server accepted the connection but does not answer"}; }

bool must_wait() noexcept { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

std::ptrdiff_t send_some(const DialledLine& line, Bytes bytes) {
  if (line.tls == nullptr) return ::send(line.socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return line.tls->send(std::span(&piece, 1));
}

Result<bool> send_all(const DialledLine& line, Bytes bytes, DialDeadline deadline) {
  while (!bytes.empty()) {
    const auto put = send_some(line, bytes);
    const bool by_bytes = line.tls != nullptr && line.tls->send_awaits_bytes();
    if (put > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(put));
    } else if (!must_wait()) {
      return lost(errno);
    } else if (!wait_ready(line.socket, by_bytes ? POLLIN : POLLOUT, deadline)) {
      return late();
    }
  }
  return true;
}

void keep_fds(msghdr& message, std::vector<UniqueFd>& fds) {
  for (auto* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
}

struct Received {
  std::ptrdiff_t bytes = 0;  // as recvmsg() has it
  bool lacks_fds = false;
};

Received receive_some(const DialledLine& line, MutableBytes into, std::vector<UniqueFd>& fds) {
  iovec piece{into.data(), into.size()};
  if (line.tls != nullptr) return {line.tls->receive(std::span(&piece, 1)), false};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * kRegionsMax)> control{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const auto got = ::recvmsg(line.socket, &message, MSG_CMSG_CLOEXEC);
  if (got > 0) keep_fds(message, fds);
  return {got, got > 0 && (message.msg_flags & MSG_CTRUNC) != 0};
}

Result<bool> receive_all(const DialledLine& line, MutableBytes into, std::vector<UniqueFd>& fds,
                         DialDeadline deadline) {
  while (!into.empty()) {
    const auto got = receive_some(line, into, fds);
    const bool by_room = line.tls != nullptr && line.tls->receive_awaits_room();
    if (got.lacks_fds) return no_descriptor_left("the server's memory");
    if (got.bytes > 0) {
      into = into.subspan(static_cast<std::size_t>(got.bytes));
    } else if (got.bytes == 0) {
      return lost(0);
    } else if (!must_wait()) {
      // A server that does not like this client's TLS says so after its own handshake.
      if (line.tls != nullptr && !line.tls->failure().empty()) {
        return Error{Code::kDisconnected, "no TLS with the server: " + line.tls->failure()};
      }
      return lost(errno);
    } else if (!wait_ready(line.socket, by_room ? POLLOUT : POLLIN, deadline)) {
      return late();
    }
  }
  return true;
}

Error no_server() {
  return {Code::kProtocol, "what answers there is no InfiniStore server of this version"};
}

Result<Greeting> understand(Opcode opcode, Bytes body) {
  if (opcode == Opcode::kError) {
    const auto refusal = decode_error(body);
    if (!refusal || refusal->code == Code::kOk) return no_server();
    return Error{refusal->code, std::string(refusal->message)};
  }
  auto welcome = decode_welcome(body);
  if (opcode != Opcode::kWelcome || !welcome) return no_server();
  if (welcome->version != kProtocolVersion) {
    return Error{Code::kVersion, "the server speaks version " + std::to_string(welcome->version) +
                                     " of the protocol, this client version " +
                                     std::to_string(kProtocolVersion)};
  }
  Greeting greeting;
  greeting.unix_path = welcome->unix_path;
  greeting.server_version = welcome->server_version;
  greeting.welcome = std::move(*welcome);
  greeting.welcome.unix_path = {};  // the body is gone on return
  greeting.welcome.server_version = {};
  return greeting;
}

Result<Answer> read_answer(const DialledLine& line, DialDeadline deadline,
                           std::vector<UniqueFd>& fds) {
  std::array<std::byte, kHeaderBytes> raw{};
  auto received = receive_all(line, raw, fds, deadline);
  if (!received) return received.error();
  const auto answer = decode_header(raw);
  if (!answer || answer->body_bytes > kWelcomeBytesMax) return no_server();
  Answer read{.opcode = answer->opcode, .body = Body(answer->body_bytes)};
  received = receive_all(line, read.body, fds, deadline);
  if (!received) return received.error();
  if (!is_intact(raw, read.body)) return no_server();
  return read;
}

// The header's `body_bytes` are the body's.
Result<Answer> exchange_with_fds(const DialledLine& line, FrameHeader asked, const Body& body,
                                 DialDeadline deadline, std::vector<UniqueFd>& fds) {
  asked.body_bytes = static_cast<std::uint32_t>(body.size());
  const auto header = encode_header(asked, body);
  std::vector<std::byte> frame(header.begin(), header.end());
  frame.insert(frame.end(), body.begin(), body.end());
  const auto sent = send_all(line, frame, deadline);
  // A server that is full, or that closes at once, may have said why before we could speak.
  if (!sent && sent.error().code == Code::kTimeout) return sent.error();
  return read_answer(line, deadline, fds);
}

}  // namespace

Result<Answer> exchange(DialledLine line, Opcode opcode, std::uint64_t request_id, const Body& body,
                        DialDeadline deadline) {
  std::vector<UniqueFd> fds;
  return exchange_with_fds(line, {.opcode = opcode, .request_id = request_id}, body, deadline, fds);
}

Error read_refusal(int socket, const Error& otherwise, DialDeadline deadline) {
  std::vector<UniqueFd> fds;
  const auto answer = read_answer({.socket = socket}, deadline, fds);
  if (!answer || answer.value().opcode != Opcode::kError) return otherwise;
  const auto refusal = decode_error(answer.value().body);
  const bool passes =
      refusal && (refusal->code == Code::kOverloaded || refusal->code == Code::kDraining);
  return passes ? Error{refusal->code, std::string(refusal->message)} : otherwise;
}

Result<Greeting> exchange_hello(DialledLine line, const Hello& hello, std::uint16_t flags,
                                DialDeadline deadline) {
  std::vector<UniqueFd> fds;
  auto answer = exchange_with_fds(
      line, {.opcode = Opcode::kHello, .flags = flags, .request_id = kHelloRequestId},
      encode(hello), deadline, fds);
  if (!answer) return answer.error();
  auto greeting = understand(answer->opcode, answer->body);
  if (greeting) greeting->fds = std::move(fds);
  return greeting;
}

}  // namespace infinistore
