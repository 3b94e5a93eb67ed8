#pragma once
// Transports: the table of all of them, by name.
//
// To add one: a folder core/transport/NAME/, and its line in transports.cpp; the conformance tests
// run over the table.

#include <memory>
#include <span>
#include <string_view>

#include "core/transport/connection.h"

namespace infinistore {

class RdmaServer;
class ServerTls;

// What a connection works with on the server's side.
struct ServerSide {
  Poller& poller;
  Pool& pool;
  RdmaServer* rdma = nullptr;  // nullptr: there is none
  ServerTls* tls = nullptr;    // nullptr: TCP's connections are as they are
};

struct Transport {
  std::string_view name;
  // The server's half over an accepted, non-blocking socket.
  Result<std::unique_ptr<Connection>> (*accept)(UniqueFd socket, const ServerSide& side,
                                                ConnectionOwner& owner);
};

std::span<const Transport> transports() noexcept;

// The one of that name; it must be in the table.
const Transport& transport_named(std::string_view name) noexcept;

}  // namespace infinistore
