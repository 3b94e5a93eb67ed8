#pragma once
// EvictionPolicy: in which order sealed, unpinned entries leave.
//
// The store calls it under its shard's lock, so a policy needs none.  It sees only evictable
// entries: the store takes an entry out while it is pinned and puts it back after, so victim()
// never has to skip one.  A policy links entries by their `hook`.
//
// To add a policy: write eviction/NAME.cpp and name it in eviction/policies.cpp.

#include <cstddef>
#include <cstdint>

#include "core/store/entry.h"

namespace infinistore {

enum class Arrival : std::uint8_t { kNew, kHit };  // just sealed, or back from being read

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  virtual void insert(Entry& entry, Arrival arrival) noexcept = 0;
  virtual void remove(Entry& entry) noexcept = 0;

  // The entry to evict next, still held by the policy; nullptr if it holds none.
  virtual Entry* victim() noexcept = 0;

  virtual std::size_t size() const noexcept = 0;  // for check_integrity()
};

}  // namespace infinistore
