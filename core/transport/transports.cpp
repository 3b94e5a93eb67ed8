#include "core/transport/transports.h"

#include <algorithm>
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
  const auto* const found =
      std::find_if(kTransports.begin(), kTransports.end(),
                   [name](const Transport& transport) { return transport.name == name; });
  KV_CHECK(found != kTransports.end());
  return *found;
}

}  // namespace infinistore
