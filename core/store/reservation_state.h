#pragma once
// ReservationState: a value while it is being written, as its shard knows it.

#include <memory>

#include "core/base/clock.h"
#include "core/store/entry.h"
#include "core/store/ranges/coverage.h"
#include "core/store/store.h"

namespace infinistore {

// `entry`'s key, size and extents are immutable; the rest belongs to the shard's lock, but the
// coverage changes only on the reservation's own thread, which may therefore read it without.
struct ReservationState {
  ReservationState(EntryPtr entry_made, OnExists on_exists_wanted, Nanos now)
      : entry(std::move(entry_made)),
        coverage(entry->value_bytes),
        touched_at(now),
        on_exists(on_exists_wanted) {}

  ListHook<ReservationState> hook;
  EntryPtr entry;
  Coverage coverage;
  Nanos touched_at;  // of the last claim or fill
  OnExists on_exists;
  bool is_fenced = false;       // purged, or a copy that may be old: it must not be sealed
  bool is_quarantined = false;  // given up, but someone may still write into its extents
};

}  // namespace infinistore
