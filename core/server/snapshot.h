#pragma once
// make_snapshot: every counter of a server at one moment, by name.

#include <span>
#include <vector>

#include "core/server/server_metrics.h"
#include "core/store/lease_table.h"
#include "core/store/store.h"
#include "core/wire/message.h"

namespace infinistore {

std::vector<Counter> make_snapshot(const StoreCounters& store, const LeaseTable& leases,
                                   std::size_t waiting_keys,
                                   std::span<const WorkerMetrics* const> workers);

}  // namespace infinistore
