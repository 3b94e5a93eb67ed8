#pragma once
// HitCurve: what part of the keys asked for an LRU pool of any size would have had, by a sample.
//
// Keys are sampled by their hash, so that all uses of a sampled key are seen; of those the distance
// in bytes to the use before is counted, which is the size of the pool that would still have had
// it.  Method: SHARDS with a sample of fixed size and its adjustment (Waldspurger et al., FAST
// 2015).  A key of a prompt counts as found only where those sampled before it are.
//
// Thread-safe; its lock is a leaf, and tried for sampled keys only: where it is taken, the use is
// passed over.

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/limits.h"
#include "core/base/mutex.h"
#include "core/store/entry.h"
#include "core/store/hash_table/hash_table.h"

namespace infinistore {

class HitCurve {
 public:
  explicit HitCurve(std::uint64_t pool_bytes);

  bool samples(std::uint64_t hash) const noexcept {
    return place_of(hash) < threshold_.load(std::memory_order_relaxed);
  }
  // `hash`: of one of them.
  void count_asked(std::uint64_t hash, std::uint64_t keys) noexcept {
    asked_[hash % asked_.size()].keys.fetch_add(keys, std::memory_order_relaxed);
  }
  // A sampled key was asked for.  `bytes`: of the pool; 0: not known.  Returns the least pool that
  // would have had it and, as `least_bytes` says, all keys before it; kNever: none.
  static constexpr double kNever = 1e300;
  double ask(std::uint64_t hash, std::uint64_t bytes, double least_bytes = 0);
  void write(std::uint64_t hash, std::uint64_t bytes);  // a sampled key
  // Brings into the caches what ask() of these will look at, if they are sampled.
  void expect(std::span<const KeyRef> refs) const noexcept;

  struct Picture {
    double asked = 0;               // keys; what was asked long ago counts less
    double sampled_share = 0;       // of all keys, at the moment
    std::uint64_t bytes_max = 0;    // beyond it nothing is known
    std::vector<double> hit_rates;  // one a size that was asked about
  };
  Picture picture(std::span<const std::uint64_t> pool_bytes) const;

 private:
  static constexpr unsigned kPlaceBits = 24;
  static std::uint32_t place_of(std::uint64_t hash) noexcept {
    return static_cast<std::uint32_t>(hash * 0xD6E8FEB86659FD93ULL >> (64 - kPlaceBits));
  }

  // Where a key stands by its last use.
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t next = 0;  // of its bucket in table_
  };

  double rate_locked() const noexcept REQUIRES(mutex_);
  double ask_locked(std::uint64_t hash, std::uint64_t bytes, double least_bytes) REQUIRES(mutex_);
  double use_locked(std::uint64_t hash, std::uint64_t bytes) REQUIRES(mutex_);  // as ask() returns
  std::uint64_t asked() const noexcept;
  std::uint64_t bytes_behind_locked(std::uint32_t slot) const noexcept REQUIRES(mutex_);
  void leave_slot_locked(std::uint32_t slot) noexcept REQUIRES(mutex_);
  void take_slot_locked(std::uint64_t hash, std::uint64_t bytes) REQUIRES(mutex_);
  void close_ranks_locked() REQUIRES(mutex_);
  void trim_locked() REQUIRES(mutex_);
  void lower_threshold_locked() REQUIRES(mutex_);
  void settle_locked() noexcept REQUIRES(mutex_);
  void scale_locked(double by) noexcept REQUIRES(mutex_);
  static std::size_t bucket_of(double bytes) noexcept;
  static double bucket_end(std::size_t bucket) noexcept;

  const std::uint64_t bytes_max_;
  std::atomic<std::uint32_t> threshold_{1u << kPlaceBits};
  // In several places, or all threads would meet in one.
  struct alignas(64) Asked {
    std::atomic<std::uint64_t> keys{0};
  };
  std::array<Asked, 16> asked_;

  std::atomic<std::uint64_t> passed_over_{0};  // asks since they were settled

  mutable Mutex mutex_;
  // Keys in the order of their last use, and their bytes; 0 where none stands.  Rows sum up slots
  // and bands rows, so that the bytes behind a slot are three short runs.  The table's buckets go
  // by low bits of the hash: a sampled key's high ones are much alike after place_of().
  HashTable<Slot> table_ GUARDED_BY(mutex_);
  std::vector<Slot> slots_ GUARDED_BY(mutex_);
  std::vector<std::uint64_t> slot_bytes_ GUARDED_BY(mutex_);
  std::vector<std::uint64_t> row_bytes_ GUARDED_BY(mutex_);
  std::vector<std::uint64_t> band_bytes_ GUARDED_BY(mutex_);
  std::size_t tracked_ GUARDED_BY(mutex_) = 0;
  std::uint32_t next_slot_ GUARDED_BY(mutex_) = 0;
  std::uint32_t first_slot_ GUARDED_BY(mutex_) = 0;  // nothing stands before it
  std::uint64_t tracked_bytes_ GUARDED_BY(mutex_) = 0;
  std::uint64_t last_bytes_ GUARDED_BY(mutex_) = kPageBytesMin;  // for a key of unknown bytes
  // Sampled asks by their distance: 16 buckets for each doubling.
  static constexpr std::size_t kBucketsPerDoubling = 16;
  std::array<double, 64 * kBucketsPerDoubling> distances_ GUARDED_BY(mutex_){};
  double sampled_asks_ GUARDED_BY(mutex_) = 0;
  double expected_asks_ GUARDED_BY(mutex_) = 0;  // by the number of all, up to settled_asked_
  std::uint64_t settled_asked_ GUARDED_BY(mutex_) = 0;
};

}  // namespace infinistore
