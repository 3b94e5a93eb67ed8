// Shard: its half of check_integrity().
#include <algorithm>

#include "core/store/shard.h"

namespace infinistore {
namespace {

bool covers(const Entry& entry) noexcept {
  std::uint64_t bytes = 0;
  for (const Extent& extent : entry.extents) bytes += extent.bytes;
  return bytes == entry.value_bytes && entry.value_bytes > 0;
}

}  // namespace

std::string Shard::check_locked(std::vector<const Extents*>& owned, const IsOurs& is_ours) const {
  if (auto wrong = check_sealed_locked(owned, is_ours); !wrong.empty()) return wrong;
  return check_states_locked(owned);
}

std::string Shard::check_sealed_locked(std::vector<const Extents*>& owned,
                                       const IsOurs& is_ours) const {
  std::string wrong;
  std::uint64_t bytes = 0;
  std::uint64_t pins = 0;
  std::size_t evictable_count = 0;
  std::vector<std::uint64_t> key_counts(key_counts_.size());
  const auto look_at = [&](const Entry& entry) {
    owned.push_back(&entry.extents);
    bytes += entry.pool_bytes();
    pins += entry.pins;
    if (!covers(entry)) wrong = "a value's extents are not as long as it";
    if (!is_ours(entry)) wrong = "an entry is in the wrong shard";
  };
  std::size_t sealed_count = 0;
  sealed_.for_each([&](const Entry& entry) {
    look_at(entry);
    ++sealed_count;
    const KeyRef ref{.space = entry.space, .key = entry.key(), .hash = entry.hash};
    if (entry.is_detached) wrong = "a detached entry is in the index";
    if (sealed_.find(ref) != &entry) wrong = "an entry is not found by its key";
    if (entry.hook.is_linked() != (entry.pins == 0)) wrong = "pinned and evictable, or neither";
    if (entry.pins == 0) ++evictable_count;
    if (entry.space >= key_counts.size()) {
      wrong = "a namespace is not counted";
    } else {
      ++key_counts[entry.space];
    }
  });
  detached_.for_each([&](const Entry& entry) {
    look_at(entry);
    if (!entry.is_detached || entry.pins == 0) wrong = "a detached entry is not pinned";
  });
  if (sealed_count != sealed_.size()) wrong = "the index's size is wrong";
  if (evictable_count != policy_->size()) wrong = "the policy does not hold what is evictable";
  if (bytes != counters_.sealed_bytes) wrong = "sealed bytes do not add up";
  if (pins != counters_.pins) wrong = "pins do not add up";
  if (!std::ranges::equal(key_counts, key_counts_)) wrong = "a namespace's keys do not add up";
  return wrong;
}

std::string Shard::check_states_locked(std::vector<const Extents*>& owned) const {
  std::string wrong;
  std::uint64_t reserved_bytes = 0;
  std::uint64_t quarantined_bytes = 0;
  std::size_t staged_count = 0;
  states_.for_each([&](const ReservationState& state) {
    const Entry& entry = *state.entry;
    owned.push_back(&entry.extents);
    if (!covers(entry)) wrong = "a reservation's extents are not as long as its value";
    if (entry.pins != 0 || entry.hook.is_linked()) wrong = "an unsealed entry is pinned or linked";
    if (state.is_quarantined) {
      quarantined_bytes += entry.pool_bytes();
      return;
    }
    reserved_bytes += entry.pool_bytes();
    ++staged_count;
    const KeyRef ref{.space = entry.space, .key = entry.key(), .hash = entry.hash};
    if (written_.find(ref) == nullptr) wrong = "a reservation is not found by its key";
  });
  if (staged_count != written_.size() || staged_count != counters_.staged_values) {
    wrong = "staged values do not add up";
  }
  if (reserved_bytes != counters_.reserved_bytes) wrong = "reserved bytes do not add up";
  if (quarantined_bytes != counters_.quarantined_bytes) wrong = "quarantined bytes do not add up";
  return wrong;
}

}  // namespace infinistore
