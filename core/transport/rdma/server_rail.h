#pragma once
// ServerRail: a queue pair that drives, and the work that is on it or waits for it.

#include <optional>
#include <vector>

#include "core/transport/rdma/server_node.h"
#include "core/transport/rdma/work_queue.h"

namespace infinistore {

class ServerRail {
 public:
  struct Failure {
    std::optional<std::uint64_t> request_id;  // to blame; nullopt: none
    Error error;
  };

  explicit ServerRail(RdmaServer::Rail rail);
  ~ServerRail() { pair_.fail(); }
  ServerRail(const ServerRail&) = delete;
  ServerRail& operator=(const ServerRail&) = delete;

  bool begin() noexcept { return pair_.rearm(); }
  Endpoint endpoint() const noexcept { return pair_.endpoint(); }
  int event_fd() const noexcept { return pair_.event_fd(); }  // readable: take_completions()
  PoolMemory& memory() const noexcept { return *memory_; }
  std::uint64_t moved_bytes() const noexcept { return queue_.moved_bytes(); }

  // A failure ends the rail.
  std::optional<Failure> add(Work work);
  std::optional<Failure> take_completions(std::vector<WorkQueue::Ended>& ended);

 private:
  std::optional<Failure> pump();

  QueuePair pair_;
  PoolMemory* memory_;
  WorkQueue queue_;
};

}  // namespace infinistore
