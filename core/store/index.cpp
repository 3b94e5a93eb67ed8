#include "core/store/index.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace infinistore {
namespace {

constexpr std::uint64_t kEveryByte = 0x0101010101010101ULL;
constexpr std::uint64_t kSlotBytes = 0x00FFFFFFFFFFFFFFULL;
constexpr std::uint64_t kOverflowOne = std::uint64_t{1} << 56;

// The high bit of every slot whose tag is `tag`; a slot above a true match may be named wrongly
// (the subtraction borrows), which comparing keys sorts out.
std::uint64_t slots_with(std::uint64_t tags, std::uint64_t tag) noexcept {
  const std::uint64_t difference = tags ^ (tag * kEveryByte);
  return (difference - kEveryByte) & ~difference & (0x80 * kEveryByte) & kSlotBytes;
}

// A used slot's tag has its high bit set.
std::uint64_t free_slots(std::uint64_t tags) noexcept {
  return ~tags & (0x80 * kEveryByte) & kSlotBytes;
}

unsigned first_slot(std::uint64_t slots) noexcept {
  return static_cast<unsigned>(std::countr_zero(slots)) / 8;
}

}  // namespace

template <class IsIt>
Entry* Index::find_if(std::uint64_t hash, IsIt is_it) const noexcept {
  if (groups_.empty()) return nullptr;
  Probe probe = probe_of(hash);
  // A saturated group never says stop, so the walk has its own end.
  for (std::size_t seen = 0; seen < groups_.size(); ++seen, next(probe)) {
    const Group& group = groups_[probe.group];
    for (auto slots = slots_with(group.tags, tag_of(hash)); slots != 0; slots &= slots - 1) {
      Entry* entry = group.entries[first_slot(slots)];
      if (entry != nullptr && is_it(*entry)) return entry;
    }
    if (overflow_of(group) == 0) return nullptr;
  }
  return nullptr;
}

Entry* Index::find(const KeyRef& ref) const noexcept {
  return find_if(ref.hash, [&ref](const Entry& entry) { return entry.has(ref); });
}

Entry* Index::find(std::uint64_t hash) const noexcept {
  return find_if(hash, [hash](const Entry& entry) { return entry.hash == hash; });
}

const Entry* Index::candidate(std::uint64_t hash) const noexcept {
  if (groups_.empty()) return nullptr;
  const Group& group = groups_[probe_of(hash).group];
  const auto slots = slots_with(group.tags, tag_of(hash));
  return slots == 0 ? nullptr : group.entries[first_slot(slots)];
}

Entry* Index::walk(Place& at, std::size_t groups_max) const noexcept {
  if (at.table != groups_.size()) at = {.table = groups_.size(), .slot = 0};
  const std::size_t end = std::min(groups_.size(), at.slot / kSlots + groups_max) * kSlots;
  while (at.slot < end) {
    const std::size_t slot = at.slot++;
    const Group& group = groups_[slot / kSlots];
    if (tag_of(group, slot % kSlots) != 0) return group.entries[slot % kSlots];
  }
  return nullptr;
}

void Index::insert(Entry& entry) {
  // At most six of seven slots: a walk is then 1.0 groups on average.
  if (size_ + 1 > groups_.size() * (kSlots - 1)) grow();
  place(entry);
  ++size_;
}

void Index::place(Entry& entry) noexcept {
  for (Probe probe = probe_of(entry.hash);; next(probe)) {
    Group& group = groups_[probe.group];
    if (const auto slots = free_slots(group.tags); slots != 0) {
      const unsigned slot = first_slot(slots);
      group.tags |= tag_of(entry.hash) << (8 * slot);
      group.entries[slot] = &entry;
      return;
    }
    if (overflow_of(group) < kOverflowMax) group.tags += kOverflowOne;
  }
}

void Index::erase(const Entry& entry) noexcept {
  KV_CHECK(size_ > 0);
  for (Probe probe = probe_of(entry.hash);; next(probe)) {
    Group& group = groups_[probe.group];
    for (auto slots = slots_with(group.tags, tag_of(entry.hash)); slots != 0; slots &= slots - 1) {
      const unsigned slot = first_slot(slots);
      if (group.entries[slot] != &entry) continue;
      group.tags &= ~(std::uint64_t{0xFF} << (8 * slot));
      group.entries[slot] = nullptr;
      --size_;
      return;
    }
    KV_CHECK(overflow_of(group) > 0);
    if (overflow_of(group) < kOverflowMax) group.tags -= kOverflowOne;
  }
}

void Index::grow() {
  const Groups old = std::exchange(groups_, Groups(groups_.empty() ? 1 : groups_.size() * 2));
  for (const Group& group : old) {
    for (unsigned slot = 0; slot < kSlots; ++slot) {
      if (tag_of(group, slot) != 0) place(*group.entries[slot]);
    }
  }
}

}  // namespace infinistore
