#pragma once
// Heat: how much a store serves of which keys, and a walk over all keys with their heat.
//
//   heat.served(leases, bytes)     by who sends them; a twentieth of a microsecond each
//   heat.hottest(100)              what is worth copying to others
//   heat.list_keys(cursor, 1000)   what moves when others join, or this one leaves
//
// Thread-safe; its lock is a leaf.  Must not outlive its Store.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/store/heat/heat_sketch.h"
#include "core/store/store.h"

namespace infinistore {

class Heat {
 public:
  struct Key {
    std::string space;
    std::string key;
    std::uint64_t value_bytes = 0;
    double bytes_per_s = 0;  // at least
  };
  struct Page {
    std::uint64_t next = 0;  // 0: nothing is left
    std::vector<Key> keys;
  };

  Heat(Store& store, const Clock& clock, Nanos half_life);

  // bytes[i] of the value that leases[i] holds, to whoever reads it.  Few bytes are sampled.
  void served(std::span<const Lease> leases, std::span<const std::uint64_t> bytes,
              Nanos now) noexcept EXCLUDES(mutex_);
  double total_rate() const noexcept EXCLUDES(mutex_);

  // The hottest first, sealed ones only.  Not those that were ever put with OnExists::kReplace:
  // whoever has a copy would not learn of the next value.
  std::vector<Key> hottest(std::size_t count_max) const EXCLUDES(mutex_);

  // Begins at cursor 0; goes on at the page's next.  A page may be empty.  Every key that is there
  // from the first call to the last is seen, some of them more than once if the store grows.
  Page list_keys(std::uint64_t cursor, std::size_t count_max) const EXCLUDES(mutex_);

 private:
  Store& store_;
  const Clock& clock_;
  mutable Mutex mutex_;
  HeatSketch sketch_ GUARDED_BY(mutex_);
};

}  // namespace infinistore
