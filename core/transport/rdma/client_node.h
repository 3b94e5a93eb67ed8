#pragma once
// RdmaClient: a client's RDMA devices and memory, and the queue pairs that it attaches.
//
// Any thread may use it.  Outlives all links.

#include <memory>
#include <string>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/transport/client_hello.h"
#include "core/transport/rdma/client_memory.h"
#include "core/transport/rdma/verbs/queue_pair.h"

namespace infinistore {

class RdmaClient {
 public:
  explicit RdmaClient(std::string device) : wish_(std::move(device)) {}

  ClientMemory& memory() noexcept { return memory_; }

  // Attaches a queue pair to a connection whose WELCOME offers it, before anything else is asked on
  // it.  kSetup: why it cannot be, and the connection goes on without; others: it is of no use.
  Result<QueuePair> attach(const DialledLine& line, std::uint64_t request_id,
                           DialDeadline deadline);

 private:
  Result<const RdmaNode*> node();

  const std::string wish_;
  Mutex mutex_;
  std::unique_ptr<RdmaNode> node_ GUARDED_BY(mutex_);  // since it was first asked for
  ClientMemory memory_;                                // ends first
};

}  // namespace infinistore
