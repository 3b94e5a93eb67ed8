#include "core/transport/transports.h"

#include <algorithm>
#include <array>

#include "core/base/check.h"
#include "core/transport/rdma/connection.h"
#include "core/transport/shm/connection.h"
#include "core/transport/tcp/connection.h"
#include "core/transport/tcp/listen.h"
#include "core/transport/tls/server_tls.h"

namespace infinistore {
namespace {

Result<std::unique_ptr<Tls>> accept_tls(int socket, const ServerSide& side) {
  if (side.tls == nullptr) return std::unique_ptr<Tls>();
  return side.tls->accept(socket);
}

Result<std::unique_ptr<Connection>> accept_tcp(UniqueFd socket, const ServerSide& side,
                                               ConnectionOwner& owner) {
  tune_tcp(socket.get());
  auto tls = accept_tls(socket.get(), side);
  if (!tls) return tls.error();
  return make_tcp_connection(std::move(socket), side.poller, side.pool, owner, std::move(*tls));
}

Result<std::unique_ptr<Connection>> accept_shm(UniqueFd socket, const ServerSide& side,
                                               ConnectionOwner& owner) {
  return make_shm_connection(std::move(socket), side.poller, side.pool, owner);
}

// Over TCP until the client has attached queue pairs.
Result<std::unique_ptr<Connection>> accept_rdma(UniqueFd socket, const ServerSide& side,
                                                ConnectionOwner& owner) {
  tune_tcp(socket.get());
  auto tls = accept_tls(socket.get(), side);
  if (!tls) return tls.error();
  return make_rdma_connection(std::move(socket), side.poller, side.pool, side.rdma, owner,
                              std::move(*tls));
}

// One end of a socket pair in one process (loopback.h): payloads in the stream, as over TCP.
Result<std::unique_ptr<Connection>> accept_loopback(UniqueFd socket, const ServerSide& side,
                                                    ConnectionOwner& owner) {
  return make_tcp_connection(std::move(socket), side.poller, side.pool, owner, nullptr);
}

constexpr std::array<Transport, 4> kTransports = {{
    {.name = "tcp", .accept = accept_tcp},
    {.name = "shm", .accept = accept_shm},
    {.name = "rdma", .accept = accept_rdma},
    {.name = "loopback", .accept = accept_loopback},
}};

}  // namespace

std::span<const Transport> transports() noexcept { return kTransports; }

const Transport& transport_named(std::string_view name) noexcept {
  const auto* const found =
      std::find_if(kTransports.begin(), kTransports.end(),
                   [name](const Transport& transport) { return transport.name == name; });
  KV_CHECK(found != kTransports.end());
  return *found;
}

}  // namespace infinistore
