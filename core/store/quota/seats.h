#pragma once
// Seats: in which order the evictable entries of an owner leave for its quota.
//
// The least recently used first, but a chain from its end: for each block before it an entry counts
// as used two uses earlier than it was, as a block is worth nothing without those before it.  Not
// thread-safe: it is its shard's, under that lock.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/store/eviction/policy.h"
#include "core/store/quota/quotas.h"

namespace infinistore {

class Seats {
 public:
  explicit Seats(std::size_t quota_count) : queues_(quota_count) {}

  // Entries that have a seat.
  void insert(QuotaId quota, Entry& entry) noexcept;
  void remove(QuotaId quota, Entry& entry) noexcept { queues_[quota].remove(entry.seat()); }

  Entry* first(QuotaId quota) noexcept {
    return queues_[quota].empty() ? nullptr : queues_[quota].front().entry;
  }
  std::uint64_t first_place(QuotaId quota) const noexcept {
    return queues_[quota].empty() ? kNoPlace : place(*queues_[quota].front().entry);
  }
  static std::uint64_t place(const Entry& entry) noexcept;

  std::size_t size() const noexcept;  // for check_integrity()

 private:
  using Queue = IntrusiveList<Seat, &Seat::hook>;
  std::vector<Queue> queues_;  // by quota
};

}  // namespace infinistore
