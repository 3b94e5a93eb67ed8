#pragma once
// Puts: the puts of one session that have begun, and the values it has staged.
//
// A whole value lives in its put; a value that comes in ranges is staged until it is complete,
// given up, or idle for too long.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/server/context.h"
#include "core/server/server_metrics.h"
#include "core/transport/connection.h"

namespace infinistore {

class Puts {
 public:
  Puts(ServerContext& context, WorkerMetrics& metrics) : context_(context), metrics_(metrics) {}

  // Answers GRANT, and RESULT if nothing was granted.
  void begin(Connection& connection, std::uint64_t request_id, NamespaceId space,
             const PutRequest& request);
  void on_pulled(Connection& connection, std::uint64_t request_id, Code outcome,
                 std::span<const std::uint64_t> checksums);

  Code abort(std::string_view key);  // kMissing: nothing of that name is staged

  std::size_t open_count() const noexcept { return open_.size(); }
  bool is_busy() const noexcept { return !open_.empty(); }
  bool has_staged() const noexcept { return !stages_.empty(); }

  // Drops staged values without progress; when to come again, if there are any left.
  std::optional<Nanos> expire(Nanos now);

  // The end.  Gives up everything; with `is_fenced` false, what the peer may still write into
  // becomes `remains`.
  std::vector<Quarantine> drop_all(bool is_fenced);

 private:
  using StageId = std::uint64_t;  // 0: none

  struct Stage {
    Reservation reservation;
    OnExists on_exists;           // a copy is sealed once its put is repeated
    Code dropped_as = Code::kOk;  // else no key leads here: it is kept for its transfers in flight
    std::uint32_t in_flight = 0;
    Nanos progress_at = 0;
  };
  struct Item {
    std::uint32_t index = 0;
    StageId stage = 0;                 // of a staged value
    std::optional<Reservation> whole;  // else
    Range range;
  };
  struct Open {
    std::vector<Code> outcomes;
    std::vector<Item> items;            // those that were granted, in order
    std::vector<std::uint32_t> echoes;  // indexes of items that repeat a range: nothing moves
    std::uint64_t bytes = 0;
    Nanos begun_at = 0;
  };
  struct Budget {
    std::uint64_t payload_left = 0;
    std::uint64_t payload_max = 0;
    std::size_t body_left = 0;
    bool has_extents = false;

    Code take(std::uint64_t bytes, std::size_t extents) noexcept;
  };

  // A put while it is being granted.
  struct Grant {
    Open open;
    std::vector<Extents> places;
    Budget budget;
  };

  Code grant(Grant& grant, std::uint32_t index, const Intent& intent, Range range);
  Code grant_whole(Grant& grant, std::uint32_t index, Reservation reservation, Range range);
  Code grant_range(Grant& grant, std::uint32_t index, StageId id, Range range);
  Code confirm(Grant& grant, std::uint32_t index, StageId id);
  Code finish(Item& item, std::uint64_t checksum);
  Code seal(StageId id);
  void give_back(Item& item);
  void drop(StageId id, Code as);
  void answer(Connection& connection, std::uint64_t request_id, Open& open, Code echo_outcome);

  ServerContext& context_;
  WorkerMetrics& metrics_;
  std::unordered_map<std::uint64_t, Open> open_;
  std::unordered_map<StageId, Stage> stages_;
  std::unordered_map<std::string, StageId> stage_of_key_;
  StageId last_stage_ = 0;
};

}  // namespace infinistore
