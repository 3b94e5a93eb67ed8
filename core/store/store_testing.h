#pragma once
// A small store and one-line writes and reads of it.  For tests and benchmarks only.

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/check.h"
#include "core/base/checksum.h"
#include "core/base/clock.h"
#include "core/store/eviction/policies.h"
#include "core/store/store.h"

namespace infinistore::testing {

inline Pool pool_of(std::uint64_t bytes) {
  auto pool = Pool::create({.bytes = bytes, .huge_pages = HugePages::kOff, .populate_now = true});
  KV_CHECK(pool.ok());
  return std::move(*pool);
}

// The clock stands still, and all of the pool may be unsealed.
inline const Clock& still_clock() {
  static const ManualClock clock;
  return clock;
}
inline StoreOptions options_with(std::string_view policy) {
  return {.eviction_policy = std::string(policy), .staged_bytes_max = std::uint64_t{1} << 40};
}

inline void write_at(const Pool& pool, const Extents& extents, std::uint64_t offset, Bytes bytes) {
  std::uint64_t start = 0;
  for (const Extent& extent : extents) {
    const std::uint64_t from = std::max(offset, start);
    const std::uint64_t to = std::min(offset + bytes.size(), start + extent.bytes);
    if (from < to) {
      std::memcpy(pool.bytes_of(extent).data() + (from - start), bytes.data() + (from - offset),
                  to - from);
    }
    start += extent.bytes;
  }
}

inline std::string read_at(const Pool& pool, const Extents& extents, Range range) {
  std::string found;
  std::uint64_t start = 0;
  for (const Extent& extent : extents) {
    const std::uint64_t from = std::max(range.offset, start);
    const std::uint64_t to = std::min(range.offset + range.bytes, start + extent.bytes);
    if (from < to) found += text_of(pool.bytes_of(extent).subspan(from - start, to - from));
    start += extent.bytes;
  }
  return found;
}

// Fills a range as a writer does.  Returns claim()'s word.
inline Code fill(Store& store, Reservation& reservation, std::uint64_t offset,
                 std::string_view text) {
  const Range range{.offset = offset, .bytes = text.size()};
  const Code code = reservation.claim(range);
  if (code != Code::kOk) return code;
  write_at(store.pool(), reservation.extents(), offset, bytes_of(text));
  reservation.filled(range, checksum(bytes_of(text), offset));
  return code;
}

// Writes a whole value.
inline Code put(Store& store, NamespaceId space, std::string_view key, std::string_view value,
                OnExists on_exists = OnExists::kKeep) {
  auto reservation = store.reserve(
      {.space = space, .key = key, .value_bytes = value.size(), .on_exists = on_exists});
  if (!reservation) return reservation.code();
  KV_CHECK(fill(store, *reservation, 0, value) == Code::kOk);
  return std::move(*reservation).seal();
}

// The value under a lease; verified.
inline std::string text_of(Store& store, const Lease& lease) {
  const Range whole{.offset = 0, .bytes = lease.value_bytes()};
  std::string text = read_at(store.pool(), lease.extents(), whole);
  auto sum = lease.range_checksum(whole);
  KV_CHECK(sum.ok() && *sum == checksum(bytes_of(text), 0));
  return text;
}

inline std::optional<std::string> get(Store& store, NamespaceId space, std::string_view key) {
  const auto lease = store.find(space, key);
  if (!lease) return std::nullopt;
  return text_of(store, *lease);
}

template <class Body>
void for_each_policy(Body body) {
  for (const auto name : eviction_policy_names()) body(name);
}

}  // namespace infinistore::testing
