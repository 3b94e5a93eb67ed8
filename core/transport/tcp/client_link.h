#pragma once
// The client's half of TCP: segments straight to and from the socket, summed while in the cache.

#include <memory>

#include "core/transport/link.h"
#include "core/transport/stream.h"

namespace infinistore {

// `verifies`: compares what is received with its checksum.
// `waker`: of the link's thread, for copies by GPUs.
std::unique_ptr<Link> make_tcp_link(Stream& stream, bool verifies, Waker& waker);

}  // namespace infinistore
