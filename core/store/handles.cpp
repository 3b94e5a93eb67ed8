// Reservation, Quarantine and Lease: what callers hold of a store.
#include <array>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/store/ranges/part_sums.h"
#include "core/store/store_impl.h"

namespace infinistore {

Reservation::Reservation(Store& store, std::unique_ptr<ReservationState> state) noexcept
    : store_(&store), state_(std::move(state)) {}
Reservation::Reservation(Reservation&&) noexcept = default;

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    give_up();
    store_ = other.store_;
    state_ = std::move(other.state_);
  }
  return *this;
}

Reservation::~Reservation() { give_up(); }

void Reservation::give_up() noexcept {
  if (state_ == nullptr) return;
  const auto state = std::move(state_);
  store_->shard_of(state->entry->hash).give_up(*state);
  store_->write_ended(state->entry->space, state->entry->key());
}

std::string_view Reservation::key() const noexcept { return state_->entry->key(); }
std::uint64_t Reservation::value_bytes() const noexcept { return state_->entry->value_bytes; }
const Extents& Reservation::extents() const noexcept { return state_->entry->extents; }

Code Reservation::claim(Range range) noexcept {
  return store_->shard_of(state_->entry->hash).claim(*state_, range, store_->now());
}

void Reservation::filled(Range range, std::uint64_t checksum) noexcept {
  store_->shard_of(state_->entry->hash).filled(*state_, range, checksum, store_->now());
}

void Reservation::unclaim(Range range) noexcept {
  store_->shard_of(state_->entry->hash).unclaim(*state_, range);
}

bool Reservation::is_claimed() const noexcept { return state_->coverage.is_claimed(); }
bool Reservation::is_complete() const noexcept { return state_->coverage.is_complete(); }
std::uint64_t Reservation::filled_bytes() const noexcept { return state_->coverage.filled_bytes(); }
std::vector<Range> Reservation::filled_ranges() const { return state_->coverage.filled_ranges(); }

Code Reservation::seal() && noexcept { return seal_with(std::nullopt); }

Code Reservation::seal_whole(std::uint64_t checksum) && noexcept { return seal_with(checksum); }

Code Reservation::seal_with(std::optional<std::uint64_t> whole_checksum) noexcept {
  const auto state = std::move(state_);
  // The entry belongs to the shard then, and may be evicted before the end is told.
  std::array<char, kKeyBytesMax> key_copy;
  const NamespaceId space = state->entry->space;
  const std::string_view key = state->entry->key();
  std::memcpy(key_copy.data(), key.data(), key.size());
  const std::string_view kept(key_copy.data(), key.size());
  const Code outcome = store_->shard_of(state->entry->hash).seal(*state, whole_checksum);
  store_->write_ended(space, kept);
  return outcome;
}

Quarantine Reservation::quarantine() && noexcept {
  auto state = std::move(state_);
  store_->shard_of(state->entry->hash).begin_quarantine(*state);
  store_->write_ended(state->entry->space, state->entry->key());
  return {*store_, std::move(state)};
}

Quarantine::Quarantine(Store& store, std::unique_ptr<ReservationState> state) noexcept
    : store_(&store), state_(std::move(state)) {}
Quarantine::Quarantine(Quarantine&&) noexcept = default;

Quarantine& Quarantine::operator=(Quarantine&& other) noexcept {
  if (this != &other) {
    give_back();
    store_ = other.store_;
    state_ = std::move(other.state_);
  }
  return *this;
}

Quarantine::~Quarantine() { give_back(); }

void Quarantine::give_back() noexcept {
  if (state_ == nullptr) return;
  const auto state = std::move(state_);
  store_->shard_of(state->entry->hash).end_quarantine(*state);
}

std::uint64_t Quarantine::bytes() const noexcept {
  return state_ == nullptr ? 0 : state_->entry->pool_bytes();
}

Lease::Lease(Store& store, Entry& entry, bool is_quiet) noexcept
    : store_(&store), entry_(&entry), is_quiet_(is_quiet) {}

Lease::Lease(Lease&& other) noexcept
    : store_(other.store_),
      entry_(std::exchange(other.entry_, nullptr)),
      is_quiet_(other.is_quiet_) {}

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    unpin();
    store_ = other.store_;
    entry_ = std::exchange(other.entry_, nullptr);
    is_quiet_ = other.is_quiet_;
  }
  return *this;
}

Lease::~Lease() { unpin(); }

void Lease::unpin() noexcept {
  if (entry_ == nullptr) return;
  Entry& entry = *std::exchange(entry_, nullptr);
  Shard& home = store_->shard_of(entry.hash);
  if (is_quiet_) {
    home.unhold(entry);
  } else {
    home.unpin(entry);
  }
}

std::string_view Lease::key() const noexcept { return entry_->key(); }
std::uint64_t Lease::value_bytes() const noexcept { return entry_->value_bytes; }
const Extents& Lease::extents() const noexcept { return entry_->extents; }
NamespaceId Lease::space() const noexcept { return entry_->space; }
bool Lease::is_detached() const noexcept {
  return store_->shard_of(entry_->hash).is_detached(*entry_);
}

Result<std::uint64_t> Lease::range_checksum(Range range) const {
  return checksum_of_range(store_->pool(), *entry_, range);
}

}  // namespace infinistore
