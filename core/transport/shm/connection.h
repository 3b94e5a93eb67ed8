#pragma once
// The server's half over shared memory: frames over a unix socket, copies by the client.
//
// The client is watched by its pidfd: a forked child may hold the socket long after the client
// died, and a client that only closed its socket may still be writing.

#include <memory>

#include "core/transport/connection.h"

namespace infinistore {

// kSetup if the peer's process cannot be watched: such a client is left to TCP.
Result<std::unique_ptr<Connection>> make_shm_connection(UniqueFd socket, Poller& poller, Pool& pool,
                                                        ConnectionOwner& owner);

}  // namespace infinistore
