#pragma once
// RdmaServer: a server's RDMA devices, its pool on each of them, and what connections make there.
//
// Any thread may use it.  Outlives all connections; the pool outlives it.

#include <memory>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/memory/pool.h"
#include "core/transport/rdma/pool_memory.h"
#include "core/transport/rdma/verbs/queue_pair.h"

namespace infinistore {

class RdmaServer {
  struct Private {};

 public:
  // `device`: "", a device's name, or NAME:PORT.  kSetup: why there is no RDMA here.
  static Result<std::unique_ptr<RdmaServer>> open(const std::string& device, const Pool& pool);
  RdmaServer(Private, std::unique_ptr<RdmaNode> node, std::string wish, const Pool& pool);

  // One of the server's ends of a connection.
  struct Rail {
    QueuePair pair;
    PoolMemory* memory;
  };
  // For the client's `peer`, over a port that it can reach; connected.
  Result<Rail> make_rail(const Endpoint& peer, int tcp_socket);

  // For the background thread: registers a part of what is populated; false: there is no more by
  // now.  An error: what is missing is tried again when it is used.
  Result<bool> cover_some();

  std::string describe() const { return description_; }

 private:
  const std::unique_ptr<RdmaNode> node_;
  const std::string wish_;
  const Pool& pool_;
  std::string description_;
  std::vector<std::unique_ptr<PoolMemory>> memories_;  // of each device
  std::size_t default_device_ = 0;
};

}  // namespace infinistore
