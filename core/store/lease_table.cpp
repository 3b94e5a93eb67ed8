#include "core/store/lease_table.h"

#include <limits>

#include "core/base/limits.h"

namespace infinistore {
namespace {

// SplitMix64's finaliser (Steele, Lea, Flood, 2014): a bijection.
std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// From the end: the policy then sees a prefix last, and keeps it longest.
void drop(std::vector<Lease> pins) noexcept {
  while (!pins.empty()) pins.pop_back();
}

}  // namespace

LeaseId LeaseTable::next_id_locked() noexcept {
  LeaseId id = 0;
  while (id == 0) id = mix(seed_ + ++created_count_);
  return id;
}

LeaseId LeaseTable::create(std::vector<Lease> pins, Nanos deadline, OwnerId owner) {
  if (pins.empty()) return 0;
  {
    const MutexLock lock(mutex_);
    if (pins.size() <= kLeaseKeysMax - key_count_) {
      const LeaseId id = next_id_locked();
      key_count_ += pins.size();
      by_deadline_.emplace(deadline, id);
      by_owner_.emplace(owner, id);
      held_.emplace(id, Held{.pins = std::move(pins), .owner = owner, .deadline = deadline});
      return id;
    }
  }
  drop(std::move(pins));
  return 0;
}

std::vector<Lease> LeaseTable::remove_locked(LeaseId lease) {
  const auto at = held_.find(lease);
  if (at == held_.end()) return {};
  by_deadline_.erase({at->second.deadline, lease});
  by_owner_.erase({at->second.owner, lease});
  auto pins = std::move(at->second.pins);
  key_count_ -= pins.size();
  held_.erase(at);
  return pins;
}

Code LeaseTable::renew(LeaseId lease, NamespaceId space, Nanos deadline) {
  const MutexLock lock(mutex_);
  const auto at = held_.find(lease);
  if (at == held_.end() || !at->second.is_of(space)) return Code::kLeaseExpired;
  by_deadline_.erase({at->second.deadline, lease});
  by_deadline_.emplace(deadline, lease);
  at->second.deadline = deadline;
  return Code::kOk;
}

Code LeaseTable::release(LeaseId lease, NamespaceId space) {
  std::vector<Lease> pins;
  {
    const MutexLock lock(mutex_);
    const auto at = held_.find(lease);
    if (at == held_.end() || !at->second.is_of(space)) return Code::kLeaseExpired;
    pins = remove_locked(lease);
  }
  drop(std::move(pins));
  return Code::kOk;
}

bool LeaseTable::contains(LeaseId lease, NamespaceId space) const {
  const MutexLock lock(mutex_);
  const auto at = held_.find(lease);
  return at != held_.end() && at->second.is_of(space);
}

std::size_t LeaseTable::expire(Nanos now) {
  for (std::size_t count = 0;; ++count) {
    std::vector<Lease> pins;
    {
      const MutexLock lock(mutex_);
      if (by_deadline_.empty() || by_deadline_.begin()->first > now) return count;
      pins = remove_locked(by_deadline_.begin()->second);
    }
    drop(std::move(pins));
  }
}

std::size_t LeaseTable::drop_owner(OwnerId owner) {
  for (std::size_t count = 0;; ++count) {
    std::vector<Lease> pins;
    {
      const MutexLock lock(mutex_);
      const auto at = by_owner_.lower_bound({owner, 0});
      if (at == by_owner_.end() || at->first != owner) return count;
      pins = remove_locked(at->second);
    }
    drop(std::move(pins));
  }
}

std::size_t LeaseTable::count() const {
  const MutexLock lock(mutex_);
  return held_.size();
}

std::size_t LeaseTable::key_count() const {
  const MutexLock lock(mutex_);
  return key_count_;
}

Nanos LeaseTable::next_deadline() const {
  const MutexLock lock(mutex_);
  return by_deadline_.empty() ? std::numeric_limits<Nanos>::max() : by_deadline_.begin()->first;
}

}  // namespace infinistore
