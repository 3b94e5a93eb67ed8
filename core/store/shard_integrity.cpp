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

KeyRef ref_of(const Entry& entry) noexcept {
  return {.space = entry.space, .key = entry.key(), .hash = entry.hash};
}

// What a shard's sealed and detached entries come to, and what is wrong with one.
struct Audit {
  Audit(const Shard::IsOurs& is_ours_given, const Index& sealed_given, std::size_t space_count)
      : is_ours(is_ours_given), sealed(sealed_given), spaces(space_count) {}

  void look_at(const Entry& entry) {
    bytes += entry.pool_bytes();
    pins += entry.pins;
    if (!covers(entry)) wrong = "a value's extents are not as long as it";
    if (!is_ours(entry)) wrong = "an entry is in the wrong shard";
  }
  void look_at_sealed(const Entry& entry) {
    look_at(entry);
    ++sealed_count;
    if (sealed.find(ref_of(entry)) != &entry) wrong = "an entry is not found by its key";
    if (entry.is_detached) wrong = "a detached entry is in the index";
    if (entry.hook.is_linked() != (entry.pins == 0)) wrong = "pinned and evictable, or neither";
    if (entry.pins == 0) ++evictable_count;
    if (entry.has_seat) {
      if (entry.seat().hook.is_linked() != (entry.pins == 0)) wrong = "a seat without an entry";
      if (entry.pins == 0) ++seat_count;
    }
    if (entry.space < spaces.size()) {
      ++spaces[entry.space].keys;
      spaces[entry.space].bytes += entry.pool_bytes();
    } else {
      wrong = "a namespace is not counted";
    }
  }
  void look_at_detached(const Entry& entry) {
    look_at(entry);
    if (!entry.is_detached || (entry.pins == 0 && entry.holds == 0)) {
      wrong = "a detached entry is neither pinned nor held";
    }
  }

  const Shard::IsOurs& is_ours;
  const Index& sealed;
  std::string wrong;
  std::uint64_t bytes = 0;
  std::uint64_t pins = 0;
  std::size_t sealed_count = 0;
  std::size_t evictable_count = 0;
  std::size_t seat_count = 0;
  std::vector<SpaceCounts> spaces;
};

bool adds_up(const SpaceCounts& found, const SpaceCounts& counted) noexcept {
  return found.keys == counted.keys && found.bytes == counted.bytes;
}

}  // namespace

std::string Shard::check_locked(std::vector<const Extents*>& owned, const IsOurs& is_ours) const {
  if (auto wrong = check_sealed_locked(owned, is_ours); !wrong.empty()) return wrong;
  return check_states_locked(owned);
}

std::string Shard::check_sealed_locked(std::vector<const Extents*>& owned,
                                       const IsOurs& is_ours) const {
  Audit audit(is_ours, sealed_, space_counts_.size());
  sealed_.for_each([&](const Entry& entry) {
    owned.push_back(&entry.extents);
    audit.look_at_sealed(entry);
  });
  detached_.for_each([&](const Entry& entry) {
    owned.push_back(&entry.extents);
    audit.look_at_detached(entry);
  });
  if (audit.sealed_count != sealed_.size()) return "the index's size is wrong";
  if (audit.evictable_count != policy_->size()) return "the policy does not hold what is evictable";
  if (audit.seat_count != seats_.size()) return "the seats are not those of what is evictable";
  if (audit.bytes != counters_.sealed_bytes) return "sealed bytes do not add up";
  if (audit.pins != counters_.pins) return "pins do not add up";
  if (!std::ranges::equal(audit.spaces, space_counts_, adds_up)) {
    return "a namespace's keys or bytes do not add up";
  }
  return audit.wrong;
}

std::string Shard::check_states_locked(std::vector<const Extents*>& owned) const {
  std::string wrong;
  std::uint64_t reserved_bytes = 0;
  std::uint64_t quarantined_bytes = 0;
  std::vector<const Entry*> reserved;
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
    reserved.push_back(&entry);
  });
  for (const Entry* entry : reserved) {
    if (written_.find(ref_of(*entry)) == nullptr) wrong = "a reservation is not found by its key";
  }
  if (reserved.size() != written_.size() || reserved.size() != counters_.staged_values) {
    wrong = "staged values do not add up";
  }
  if (reserved_bytes != counters_.reserved_bytes) wrong = "reserved bytes do not add up";
  if (quarantined_bytes != counters_.quarantined_bytes) wrong = "quarantined bytes do not add up";
  return wrong;
}

}  // namespace infinistore
