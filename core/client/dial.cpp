#include "core/client/dial.h"

#include <poll.h>
#include <sys/random.h>

#include <chrono>

#include "core/transport/boot_id.h"
#include "core/transport/client_hello.h"
#include "core/transport/shm/client_dial.h"
#include "core/transport/tls/client_tls.h"

namespace infinistore {
namespace {

constexpr std::uint64_t kAttachRequestId = 2;  // HELLO was 1

Hello make_hello(const ClientOptions& options, const ClientIdentity& identity) {
  Hello hello;
  hello.incarnation = identity.incarnation;
  hello.boot_id = identity.boot_id;
  hello.token = options.token;
  hello.space = options.space;
  hello.client_name = options.client_name;
  return hello;
}

bool is_read_only(const Greeting& greeting) noexcept {
  return (greeting.welcome.capabilities & Welcome::kReadOnly) != 0;
}

// A server of before there were readers ends the connection at a flag that it does not know, with a
// word or without, rather than give one more than it asked for.
Result<Greeting> greet(DialledLine line, const ClientOptions& options, const Hello& hello,
                       DialDeadline deadline) {
  const auto flags = options.read_only ? kFlagHelloReadOnly : std::uint16_t{0};
  auto greeting = exchange_hello(line, hello, flags, deadline);
  if (!greeting && options.read_only &&
      (greeting.code() == Code::kProtocol || greeting.code() == Code::kDisconnected)) {
    return Error{greeting.code(),
                 greeting.error().message + "; an older server does not know read_only: update it"};
  }
  if (greeting && options.read_only && !is_read_only(*greeting)) {
    return Error{Code::kProtocol, "the server has not heard that this session may only read"};
  }
  return greeting;
}

ServerInfo server_of(const Greeting& greeting) {
  return {.incarnation = greeting.welcome.incarnation,
          .pool_bytes = greeting.welcome.pool_bytes,
          .version = greeting.server_version,
          .shares_memory = false,
          .uses_rdma = false,
          .reads_only = is_read_only(greeting),
          .no_sharing_reason = {},
          .no_rdma_reason = {}};
}

DialDeadline deadline_of(const ClientOptions& options) {
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(options.connect_timeout);
}

// Nothing, if TLS is not asked for.
Result<std::unique_ptr<Tls>> secure(int socket, const ClientOptions& options,
                                    DialDeadline deadline) {
  if (!options.tls) return std::unique_ptr<Tls>();
  auto tls = connect_tls(socket, options.host, options.tls_ca_file, deadline);
  if (tls) return tls;
  Error error = tls.error();
  if (error.code == Code::kProtocol) {  // one that is full, or goes, says so in plain
    error = read_refusal(socket, {Code::kDisconnected, error.message}, deadline);
  }
  if (error.code == Code::kDisconnected) {
    error.message = "no TLS with " + shown(options.host, options.port) + ": " + error.message;
  }
  return error;
}

Result<Dialled> dial_shared(const ClientOptions& options, const ClientIdentity& identity,
                            const Greeting& over_tcp) {
  if (over_tcp.unix_path.empty()) return Error{Code::kSetup, "the server offers no unix socket"};
  if (identity.boot_id == BootId{} || identity.boot_id != over_tcp.welcome.boot_id) {
    return Error{Code::kSetup, "the server runs on another machine"};
  }
  const auto deadline = deadline_of(options);
  auto socket = dial_unix(over_tcp.unix_path, deadline);
  if (!socket) return socket.error();
  auto hello = make_hello(options, identity);
  hello.nonce = over_tcp.welcome.nonce;
  auto greeting = greet({.socket = socket->get()}, options, hello, deadline);
  if (!greeting) return greeting.error();
  if ((greeting->welcome.capabilities & Welcome::kSharedMemory) == 0) {
    return Error{Code::kSetup, "the server does not share its memory"};
  }
  if (greeting->welcome.incarnation != over_tcp.welcome.incarnation) {
    return Error{Code::kSetup, "another server listens on that unix socket"};
  }
  auto pool = ClientPool::map(std::move(greeting->fds), greeting->welcome.region_bytes,
                              is_read_only(*greeting) ? PoolAccess::kRead : PoolAccess::kReadWrite);
  if (!pool) return pool.error();
  Dialled dialled{std::move(*socket), server_of(*greeting), std::move(*pool), {}, {}};
  dialled.server.shares_memory = true;
  return dialled;
}

// On one machine shared memory is quicker, and TCP no slower than a device's way out and back.
Error why_no_rdma(const ClientIdentity& identity, const Greeting& over_tcp,
                  TransportChoice choice) {
  if ((over_tcp.welcome.capabilities & Welcome::kRdma) == 0) {
    return {Code::kSetup, "the server has no RDMA device (its log says why)"};
  }
  if (choice == TransportChoice::kAuto && identity.boot_id != BootId{} &&
      identity.boot_id == over_tcp.welcome.boot_id) {
    return {Code::kSetup, "the server runs on this machine"};
  }
  return {Code::kOk, {}};
}

// A server's connections end one after the other.
constexpr auto kEndsWithin = std::chrono::milliseconds(10);

// A server that is slow, full, or going is no lack of this machine's: the next try may succeed.
Error why_not_shared(const Error& cause, int tcp_socket) {
  const auto until = std::chrono::steady_clock::now() + kEndsWithin;
  const bool passes =
      cause.code == Code::kTimeout || cause.code == Code::kOverloaded ||
      cause.code == Code::kDraining ||
      (cause.code == Code::kDisconnected && wait_ready(tcp_socket, POLLRDHUP, until));
  if (passes) return cause;
  return {Code::kSetup,
          "shared memory cannot be used: " + cause.message + "; transport=\"auto\" takes TCP then"};
}

}  // namespace

ClientIdentity make_client_identity() {
  ClientIdentity identity;
  identity.boot_id = read_boot_id();
  // Cannot fail for so few bytes once the system has started; if it did, 0 is an incarnation too.
  [[maybe_unused]] const auto got = ::getrandom(&identity.incarnation, 8, 0);
  return identity;
}

Result<Dialled> dial(const ClientOptions& options, const ClientIdentity& identity,
                     TransportChoice choice, RdmaClient& rdma) {
  const auto deadline = deadline_of(options);
  auto socket = dial_tcp(options.host, options.port, deadline);
  if (!socket) return socket.error();
  auto secured = secure(socket->get(), options, deadline);
  if (!secured) return secured.error();
  auto tls = std::move(*secured);
  const DialledLine line{.socket = socket->get(), .tls = tls.get()};
  auto greeting = greet(line, options, make_hello(options, identity), deadline);
  if (!greeting) return greeting.error();
  auto server = server_of(*greeting);
  if (choice == TransportChoice::kAuto || choice == TransportChoice::kShm) {
    auto shared = dial_shared(options, identity, *greeting);
    if (shared) return shared;
    if (choice == TransportChoice::kShm) {
      return why_not_shared(shared.error(), socket->get());
    }
    server.no_sharing_reason = shared.error().message;
  }
  if (choice == TransportChoice::kTcp) {
    return Dialled{std::move(*socket), std::move(server), {}, {}, std::move(tls)};
  }
  auto reason = why_no_rdma(identity, *greeting, choice);
  if (reason.code == Code::kOk) {
    auto pair = rdma.attach(line, kAttachRequestId, deadline);
    if (pair) {
      server.uses_rdma = true;
      return Dialled{std::move(*socket), std::move(server), {}, std::move(*pair), std::move(tls)};
    }
    if (pair.code() != Code::kSetup) return pair.error();
    reason = pair.error();
  }
  if (choice == TransportChoice::kRdma) {
    return Error{Code::kSetup, "RDMA cannot be used: " + reason.message +
                                   "; transport=\"auto\" takes what can be"};
  }
  server.no_rdma_reason = reason.message;
  return Dialled{std::move(*socket), std::move(server), {}, {}, std::move(tls)};
}

}  // namespace infinistore
