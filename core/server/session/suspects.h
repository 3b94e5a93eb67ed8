#pragma once
// Suspects: values of which a reader says that they are damaged, until the server has looked
// itself.
//
// A reader may be wrong, and what it read may have been replaced since: so its word alone drops
// nothing.  Bytes are summed in slices, between which the worker serves others.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/server/context.h"
#include "core/server/server_metrics.h"
#include "core/store/value_check.h"
#include "core/transport/connection.h"

namespace infinistore {

class Suspects {
 public:
  Suspects(ServerContext& context, WorkerMetrics& metrics) : context_(context), metrics_(metrics) {}

  // Answers RESULT when all keys are looked at: kCorrupt, it was and is dropped; kOk, its bytes are
  // right; kMissing.
  void begin(std::uint64_t request_id, NamespaceId space,
             const std::vector<std::string_view>& keys);
  // A slice of work.  Whether there is more.
  bool step(Connection& connection);

  std::size_t open_count() const noexcept { return open_.size(); }
  void drop_all() noexcept { open_.clear(); }

 private:
  struct Open {
    std::uint64_t request_id = 0;
    NamespaceId space = 0;
    std::vector<std::string> keys;
    std::vector<Code> outcomes;  // of the keys that are looked at
    std::optional<ValueCheck> check;
  };

  std::uint64_t look(Open& open, std::uint64_t bytes_max);

  ServerContext& context_;
  WorkerMetrics& metrics_;
  std::deque<Open> open_;
};

}  // namespace infinistore
