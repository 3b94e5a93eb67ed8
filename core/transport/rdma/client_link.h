#pragma once
// The client's half of RDMA: shows segments to the server's device, and sums them.

#include <memory>

#include "core/transport/link.h"
#include "core/transport/rdma/client_node.h"
#include "core/transport/stream.h"

namespace infinistore {

// `must`: what cannot be shown is an error; else it goes as over TCP.
std::unique_ptr<Link> make_rdma_link(Stream& stream, QueuePair pair, RdmaClient& client,
                                     bool verifies, bool must, Waker& waker);

}  // namespace infinistore
