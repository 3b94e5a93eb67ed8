#pragma once
// Store::Impl: what a store consists of.  For store.cpp and integrity.cpp only.

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/store/shard.h"
#include "core/store/store.h"

namespace infinistore {

struct Store::Impl {
  Impl(Pool pool_given, StoreOptions options_given, const Clock& clock_given, WriteEnd write_end);

  // All shards locked, in the order of their indexes.  Nobody else ever holds two.
  class World {
   public:
    explicit World(const Impl& impl) NO_THREAD_SAFETY_ANALYSIS;
    ~World() NO_THREAD_SAFETY_ANALYSIS;
    World(const World&) = delete;
    World& operator=(const World&) = delete;

   private:
    const Impl& impl_;
  };

  StoreCounters counters_locked() const NO_THREAD_SAFETY_ANALYSIS;  // in a World

  Pool pool;
  const StoreOptions options;
  const Clock& clock;
  const WriteEnd on_write_end;
  StagedBudget budget;
  Quotas quotas;
  UseCount uses{0};
  Mutex room_mutex;  // one evicts for all; before a shard's
  HitCurve curve;
  const std::unique_ptr<EvictionScheme> eviction;  // null: no policy has that name
  std::vector<std::unique_ptr<Shard>> shards;

  mutable Mutex names_mutex;
  std::unordered_map<std::string, NamespaceId> space_ids GUARDED_BY(names_mutex);
  std::vector<std::string> space_names GUARDED_BY(names_mutex) = {""};
  std::deque<SpaceUse> space_uses GUARDED_BY(names_mutex) = std::deque<SpaceUse>(1);
};

}  // namespace infinistore
