#include "core/store/scrub/scrub.h"

#include <algorithm>

#include "core/store/store_impl.h"

namespace infinistore {
namespace {

// Of an index, looked at under the shard's lock: some microseconds.
constexpr std::size_t kGroupsAtOnce = 256;
// What a look for the next value counts as, so that steps over empty tables end too.
constexpr std::uint64_t kLookBytes = 4096;

}  // namespace

bool Scrub::step(std::uint64_t bytes_max) {
  // Somebody wants it gone: its memory first.
  if (check_ && check_->lease().is_detached()) check_.reset();
  while (bytes_max > 0) {
    if (!check_) {
      if (shard_ == store_.impl_->shards.size()) return false;
      take_next();
      bytes_max -= std::min(bytes_max, kLookBytes);
      continue;
    }
    const std::uint64_t before = check_->done_bytes();
    const auto state = check_->step(bytes_max);
    const std::uint64_t bytes = check_->done_bytes() - before;
    here_.bytes += bytes;
    bytes_max -= bytes;
    if (state == ValueCheck::State::kGoesOn) continue;
    ++here_.values;
    if (state == ValueCheck::State::kCorrupt) drop();
    check_.reset();
  }
  return true;
}

void Scrub::take_next() {
  Shard& shard = *store_.impl_->shards[shard_];
  const std::size_t table = place_.table;
  bool is_end = false;
  Entry* entry = shard.hold_next(place_, kGroupsAtOnce, is_end);
  if (place_.table != table) here_ = {};  // its walk begins, or begins anew
  if (entry != nullptr) check_.emplace(Lease(store_, *entry, true));
  if (!is_end) return;
  earlier_.values += here_.values;
  earlier_.bytes += here_.bytes;
  here_ = {};
  place_ = {};
  ++shard_;
}

void Scrub::drop() {
  const Lease& lease = check_->lease();
  store_.drop_corrupt(lease);
  ++corrupt_;
  if (damaged_.size() == kDamagedMax) return;
  damaged_.push_back({.space = store_.space_name(lease.space()), .key = std::string(lease.key())});
}

Scrub::Found Scrub::found() const {
  return {.values = earlier_.values + here_.values,
          .bytes = earlier_.bytes + here_.bytes,
          .corrupt = corrupt_,
          .damaged = damaged_};
}

}  // namespace infinistore
