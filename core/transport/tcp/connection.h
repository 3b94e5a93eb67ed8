#pragma once
// The server's half over TCP: payloads travel in the stream, straight between socket and pool.

#include <memory>

#include "core/transport/connection.h"

namespace infinistore {

std::unique_ptr<Connection> make_tcp_connection(UniqueFd socket, Poller& poller, Pool& pool,
                                                ConnectionOwner& owner);

}  // namespace infinistore
