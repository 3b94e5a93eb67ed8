#pragma once
// Entry: what is known of one key and its value.  One allocation, the key behind the fields, and
// behind that the seat of one whose owner has a quota.
//
// An entry is written by one Reservation, then sealed: from there on everything but `hook`, `pins`,
// `holds`, `used_at`, `eviction_mark`, `is_detached` and the seat is immutable, and those belong to
// its shard's lock.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/intrusive_list.h"
#include "core/memory/extent.h"

namespace infinistore {

using NamespaceId = std::uint32_t;

// A part of a value, in bytes from its start.
struct Range {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;

  bool operator==(const Range&) const = default;
};

// A key, where it lives, and its hash in one store.
struct KeyRef {
  NamespaceId space = 0;
  std::string_view key;
  std::uint64_t hash = 0;
};

inline std::uint64_t hash_in(NamespaceId space, std::string_view key, std::uint64_t seed) noexcept {
  return hash_key(key, seed ^ (space * 0x9E3779B97F4A7C15ULL));
}

// A range as it was put, and its sum.  It ends where the next one begins.
struct Part {
  std::uint64_t offset = 0;
  std::uint64_t checksum = 0;
};

struct Entry;

// An entry's place among those of its owner.
struct Seat {
  ListHook<Seat> hook;
  Entry* entry = nullptr;
};

struct Entry {
  // What look-ups and policies read stands together.
  ListHook<Entry> hook;  // in its policy, or among its shard's detached
  std::uint64_t hash = 0;
  std::uint64_t used_at = 0;  // when it became evictable, in uses of the whole store
  std::uint32_t depth = 0;    // in its chain
  NamespaceId space = 0;
  std::uint32_t pins : 30 = 0;
  bool has_seat : 1 = false;
  bool is_replaced : 1 = false;     // was put with OnExists::kReplace; immutable as the rest
  std::uint16_t eviction_mark = 0;  // its policy's own
  std::uint8_t key_bytes = 0;
  std::uint8_t holds : 7 = 0;    // by who looks without using it: still in its policy
  bool is_detached : 1 = false;  // erased, but pinned or held: no key leads here
  std::uint64_t value_bytes = 0;
  std::uint64_t checksum = 0;     // of the whole value, if it was put in one range
  std::uint64_t parent_hash = 0;  // of the key before it in its chain; 0: none
  Extents extents;
  std::unique_ptr<const std::vector<Part>> parts;  // null if it was put in one range

  std::string_view key() const noexcept {
    return {reinterpret_cast<const char*>(this + 1), key_bytes};
  }
  bool has(const KeyRef& ref) const noexcept {
    return hash == ref.hash && space == ref.space && key() == ref.key;
  }
  std::uint64_t pool_bytes() const noexcept { return whole_pages(value_bytes); }

  // Of one that has a seat.
  const Seat& seat() const noexcept {
    return *reinterpret_cast<const Seat*>(reinterpret_cast<const std::byte*>(this) +
                                          seat_offset(key_bytes));
  }
  Seat& seat() noexcept { return const_cast<Seat&>(std::as_const(*this).seat()); }
  static constexpr std::size_t seat_offset(std::size_t key_bytes) noexcept;
};

constexpr std::size_t Entry::seat_offset(std::size_t key_bytes) noexcept {
  return sizeof(Entry) + (key_bytes + alignof(Seat) - 1) / alignof(Seat) * alignof(Seat);
}

struct EntryEnd {
  void operator()(Entry* entry) const noexcept;
};
using EntryPtr = std::unique_ptr<Entry, EntryEnd>;

EntryPtr make_entry(const KeyRef& ref, bool has_seat = false);

}  // namespace infinistore
