#include "core/transport/transports.h"

#include <array>

#include "core/base/check.h"
#include "core/transport/shm/connection.h"
#include "core/transport/tcp/connection.h"
#include "core/transport/tcp/listen.h"

namespace infinistore {
namespace {

Result<std::unique_ptr<Connection>> accept_tcp(UniqueFd socket, Poller& poller, Pool& pool,
                                               ConnectionOwner& owner) {
  tune_tcp(socket.get());
  return make_tcp_connection(std::move(socket), poller, pool, owner);
}

// One end of a socket pair in one process (loopback.h): payloads in the stream, as over TCP.
Result<std::unique_ptr<Connection>> accept_loopback(UniqueFd socket, Poller& poller, Pool& pool,
                                                    ConnectionOwner& owner) {
  return make_tcp_connection(std::move(socket), poller, pool, owner);
}

constexpr std::array<Transport, 3> kTransports = {{
    {.name = "tcp", .accept = accept_tcp},
    {.name = "shm", .accept = make_shm_connection},
    {.name = "loopback", .accept = accept_loopback},
}};

}  // namespace

std::span<const Transport> transports() noexcept { return kTransports; }

const Transport& transport_named(std::string_view name) noexcept {
  for (const auto& transport : kTransports) {
    if (transport.name == name) return transport;
  }
  KV_CHECK(!"no transport of that name");
  return kTransports.front();
}

}  // namespace infinistore
