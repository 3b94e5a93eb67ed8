#pragma once
// Gets: the gets of one session that have begun: waiting for a writer, or being sent.

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/server/context.h"
#include "core/server/server_metrics.h"
#include "core/transport/connection.h"

namespace infinistore {

class Gets {
 public:
  Gets(ServerContext& context, WorkerMetrics& metrics) : context_(context), metrics_(metrics) {}

  struct Place {  // where answers to a waiter go
    std::uint32_t worker_index = 0;
    SessionId session_id = 0;
  };

  // Answers DATA at once, or when the keys that are being written are decided or the wait is over.
  void begin(Connection& connection, const FrameHeader& header, Bytes body, NamespaceId space,
             const Place& place, GetRequest request);
  void on_write_end(Connection& connection, const Waiter& waiter);
  void on_pushed(std::uint64_t request_id);

  std::size_t open_count() const noexcept { return waiting_.size() + sending_.size(); }
  bool is_busy() const noexcept { return open_count() > 0; }

  // Answers what has waited long enough; when to come again, if anything waits.
  std::optional<Nanos> expire(Connection& connection, Nanos now);
  void drop_all();

 private:
  struct Item {
    Code outcome = Code::kMissing;
    std::optional<Lease> lease;
    Range range;
    bool waits = false;
  };
  struct Open {
    GetRequest request;
    Body body;  // what the request's keys point into, if it waits
    std::vector<Item> items;
    NamespaceId space = 0;
    Place place;
    std::uint64_t request_id = 0;
    bool is_up_to = false;
    bool takes_copy = false;
    Code missing = Code::kMissing;  // or kLeaseExpired, if it was asked under a lease that is gone
    std::size_t waiting = 0;
    Nanos begun_at = 0;
    Nanos deadline = 0;
  };
  struct Sending {
    std::vector<Lease> pins;
    std::uint64_t bytes = 0;
    Nanos begun_at = 0;
  };

  void look_up(Open& open, std::size_t index);
  bool wait_for(Open& open, std::size_t index);
  void stop_waiting(Open& open);
  void answer(Connection& connection, Open open);
  void note_sent(const Sending& sending);
  Code add_found(const Open& open, Item& item, ReplyLimits& left, std::size_t& body_left,
                 DataReply& reply);

  ServerContext& context_;
  WorkerMetrics& metrics_;
  std::unordered_map<std::uint64_t, Open> waiting_;
  std::unordered_map<std::uint64_t, Sending> sending_;
};

}  // namespace infinistore
