#pragma once
// EvictionPolicy: in which order sealed, unpinned entries leave.
//
// A policy has one or a few lines of entries.  Of a line, over all shards, the entry of the lowest
// place leaves first; the scheme, which the policies of a store have in common, says which line is
// next.
//
// The store calls a policy under its shard's lock, so that it needs none.  It sees only evictable
// entries: the store takes an entry out while it is pinned and puts it back after.  A policy links
// entries by their `hook`.
//
// To add a policy: write eviction/NAME.cpp and name it in eviction/policies.cpp.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/store/entry.h"

namespace infinistore {

enum class Arrival : std::uint8_t { kNew, kHit };  // just sealed, or back from being read

inline constexpr std::size_t kEvictionLinesMax = 4;

inline constexpr std::uint64_t kNoPlace = UINT64_MAX;  // of a line that has no first
using FirstPlaces = std::array<std::uint64_t, kEvictionLinesMax>;

class EvictionPolicy {
 public:
  explicit EvictionPolicy(std::size_t line_count) noexcept : line_count_(line_count) {}
  virtual ~EvictionPolicy() = default;

  std::size_t line_count() const noexcept { return line_count_; }  // at most kEvictionLinesMax

  virtual void insert(Entry& entry, Arrival arrival) noexcept = 0;
  virtual void remove(Entry& entry) noexcept = 0;

  // The first of a line, still held by the policy; nullptr if there is none.  While the policy
  // holds an entry, some line has a first.
  virtual Entry* first(std::size_t line) noexcept = 0;
  virtual std::uint64_t place(const Entry& entry) const noexcept { return entry.used_at; }
  virtual FirstPlaces first_places() const noexcept = 0;  // asked for after every change

  // An entry of this hash will be put, or put back, soon: prefetches what insert() will look at.
  virtual void expect(std::uint64_t) const noexcept {}

  virtual std::size_t size() const noexcept = 0;  // for check_integrity()

 private:
  std::size_t line_count_;
};

// What the policies of one store have in common.  Outlives them; they may use it from any thread.
class EvictionScheme {
 public:
  virtual ~EvictionScheme() = default;
  virtual std::unique_ptr<EvictionPolicy> make_policy() = 0;  // one a shard, before any use

  // Whose first leaves: a line that has one.  `firsts`: the lowest place of each line; `now`: uses
  // of the store so far.
  virtual std::size_t choose(const FirstPlaces& firsts, std::uint64_t now) noexcept = 0;
};

}  // namespace infinistore
