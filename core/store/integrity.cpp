// Store: what an operator and a test see of it.
#include <algorithm>

#include "core/store/store_impl.h"

namespace infinistore {

StoreCounters Store::Impl::counters_locked() const {
  StoreCounters counters;
  counters.capacity_bytes = pool.capacity_bytes();
  counters.free_bytes = pool.free_bytes();
  counters.populated_bytes = pool.populated_bytes();
  for (const auto& shard : shards) shard->add_counters_locked(counters);
  const MutexLock lock(names_mutex);
  counters.namespaces = space_ids.size();
  return counters;
}

StoreCounters Store::counters() const {
  const Impl::World world(*impl_);
  return impl_->counters_locked();
}

std::vector<StagedView> Store::staged(std::size_t count_max) const {
  std::vector<StagedView> views;
  const Nanos now = impl_->clock.now();
  for (const auto& shard : impl_->shards) {
    const MutexLock lock(shard->mutex());
    shard->for_each_staged_locked([&](const ReservationState& state) {
      if (views.size() >= count_max) return;
      views.push_back({.space = space_name(state.entry->space),
                       .key = std::string(state.entry->key()),
                       .value_bytes = state.entry->value_bytes,
                       .filled_bytes = state.coverage.filled_bytes(),
                       .filled = state.coverage.filled_ranges(),
                       .idle = std::max<Nanos>(0, now - state.touched_at)});
    });
  }
  return views;
}

// World holds all locks, which the analysis cannot see.
std::string Store::check_integrity() const NO_THREAD_SAFETY_ANALYSIS {
  const Impl::World world(*impl_);
  std::vector<const Extents*> owned;
  for (std::size_t index = 0; index < impl_->shards.size(); ++index) {
    const auto is_ours = [&](const Entry& entry) {
      return &shard_of(entry.hash) == impl_->shards[index].get();
    };
    const auto wrong = impl_->shards[index]->check_locked(owned, is_ours);
    if (!wrong.empty()) return "shard " + std::to_string(index) + ": " + wrong;
  }
  const StoreCounters counters = impl_->counters_locked();
  if (counters.reserved_bytes != impl_->budget.bytes()) return "the staged budget does not add up";
  if (counters.unaccounted_bytes() != 0) {
    return "free + reserved + quarantined + sealed is not the capacity";
  }
  return impl_->pool.check_integrity(owned);
}

}  // namespace infinistore
