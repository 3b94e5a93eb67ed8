#pragma once
// Index: a set of entries found by key.  Borrows them; equal keys may stand in it more than once.
//
// Open addressing in groups of one cache line: seven entries and a word of their tags, so that a
// lookup costs one miss here and one at the entry.  The word's last byte counts the entries that
// passed the group because it was full: a lookup stops where it is 0, and erasing leaves no
// tombstones.  Method: F14 (Bronson and Shi, Facebook, 2019).  10.7 to 21 bytes an entry.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/memory/small_heap.h"
#include "core/store/entry.h"

namespace infinistore {

class Index {
 public:
  void insert(Entry& entry);
  void erase(const Entry& entry) noexcept;  // by identity; it must be in
  Entry* find(const KeyRef& ref) const noexcept;
  Entry* find(std::uint64_t hash) const noexcept;  // whichever has it

  // Asks the memory for the group where a key of this hash would stand, and, that being here, names
  // the entry that it is likely to find; nullptr: none.
  void expect(std::uint64_t hash) const noexcept {
    if (!groups_.empty()) __builtin_prefetch(&groups_[probe_of(hash).group]);
  }
  const Entry* candidate(std::uint64_t hash) const noexcept;

  // Where a walk over all entries stands.  It starts anew when the table has grown since.
  struct Place {
    std::size_t table = 0;  // groups of the table that it was in
    std::size_t slot = 0;   // of all of its slots
  };
  // Looks at `groups_max` groups at most for the next entry; nullptr: none there.  Entries that are
  // inserted meanwhile may be passed over.
  Entry* walk(Place& at, std::size_t groups_max) const noexcept;
  // body(entry) for all entries of the next groups of a walk.
  template <class Body>
  void walk_groups(Place& at, std::size_t groups_max, Body body) const {
    if (at.table != groups_.size()) at = {.table = groups_.size(), .slot = 0};
    std::size_t group = at.slot / kSlots;
    const std::size_t end = std::min(groups_.size(), group + groups_max);
    for (; group < end; ++group) for_each_in(groups_[group], body);
    at.slot = group * kSlots;
  }
  bool is_end(const Place& at) const noexcept {
    return at.table == groups_.size() && at.slot >= groups_.size() * kSlots;
  }

  std::size_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept { return groups_.size() * sizeof(Group); }

  template <class Body>
  void for_each(Body body) const {
    for (const Group& group : groups_) for_each_in(group, body);
  }

 private:
  static constexpr unsigned kSlots = 7;
  static constexpr unsigned kOverflowMax = 255;  // once here it stays: too many passed to count

  struct alignas(64) Group {
    std::uint64_t tags = 0;  // a byte a slot, 0 if free; the last byte counts the overflow
    std::array<Entry*, kSlots> entries{};
  };
  static_assert(sizeof(Group) == 64);
  using Groups = std::vector<Group, TableAllocator<Group>>;

  struct Probe {
    std::size_t group;
    std::size_t step;  // odd, so that every group of a power of two is reached
  };

  template <class Body>
  static void for_each_in(const Group& group, Body& body) {
    for (unsigned slot = 0; slot < kSlots; ++slot) {
      if (tag_of(group, slot) != 0) body(*group.entries[slot]);
    }
  }
  static std::uint64_t tag_of(std::uint64_t hash) noexcept { return 0x80 | (hash >> 25 & 0x7F); }
  static std::uint64_t tag_of(const Group& group, std::size_t slot) noexcept {
    return group.tags >> (8 * slot) & 0xFF;
  }
  static std::uint64_t overflow_of(const Group& group) noexcept { return group.tags >> 56; }
  Probe probe_of(std::uint64_t hash) const noexcept {
    return {.group = hash & (groups_.size() - 1), .step = 2 * tag_of(hash) + 1};
  }
  void next(Probe& probe) const noexcept {
    probe.group = (probe.group + probe.step) & (groups_.size() - 1);
  }
  template <class IsIt>
  Entry* find_if(std::uint64_t hash, IsIt is_it) const noexcept;
  void place(Entry& entry) noexcept;
  void grow();

  Groups groups_;  // a power of two
  std::size_t size_ = 0;
};

}  // namespace infinistore
