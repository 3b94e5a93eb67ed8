#pragma once
// The server's half over RDMA: its device READs and WRITEs memory that the client exposes.
//
// Frames, and the bytes of requests that expose none, travel as over TCP; so does all until the
// client has attached queue pairs.

#include <memory>

#include "core/transport/connection.h"
#include "core/transport/tls/tls.h"

namespace infinistore {

class RdmaServer;

// `rdma`: outlives it; nullptr: ATTACH is refused.
std::unique_ptr<Connection> make_rdma_connection(UniqueFd socket, Poller& poller, Pool& pool,
                                                 RdmaServer* rdma, ConnectionOwner& owner,
                                                 std::unique_ptr<Tls> tls);

}  // namespace infinistore
