#pragma once
// The client's half of shared memory: one copy, summed on the way, between segments and the pool.

#include <memory>

#include "core/transport/crew.h"
#include "core/transport/link.h"
#include "core/transport/shm/client_pool.h"
#include "core/transport/stream.h"

namespace infinistore {

// `verifies`: compares what is read with its checksum.  `crew` shares in the copies.
// `waker`: of the link's thread, for copies by GPUs.
std::unique_ptr<Link> make_shm_link(Stream& stream, ClientPool pool, bool verifies, Crew& crew,
                                    Waker& waker);

}  // namespace infinistore
