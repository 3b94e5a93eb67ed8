#pragma once
// Scrub: walks all sealed values of a store in steps, and drops those whose bytes are damaged.
//
//   Scrub scrub(store);  while (scrub.step(bytes)) wait a little;  scrub.found()
//
// One thread at a time; the store goes on meanwhile.  What is sealed after the walk has passed its
// place is not looked at, what leaves before is not either.  No lock is held while bytes are
// summed, and what is looked at counts as not used.  Must not outlive its Store.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/store/index.h"
#include "core/store/value_check.h"

namespace infinistore {

class Scrub {
 public:
  static constexpr std::size_t kDamagedMax = 1000;

  struct Damaged {
    std::string space;
    std::string key;
  };
  struct Found {
    std::uint64_t values = 0;
    std::uint64_t bytes = 0;
    std::uint64_t corrupt = 0;
    std::vector<Damaged> damaged;  // the first kDamagedMax of them
  };

  explicit Scrub(Store& store) noexcept : store_(store) {}

  // Sums at most so many bytes; false: there is nothing more to see.
  bool step(std::uint64_t bytes_max);
  Found found() const;
  // Of the value that it is in the middle of: its bytes stay for the moment, whatever happens.
  std::uint64_t held_bytes() const noexcept {
    return check_ ? check_->lease().value_bytes() : std::uint64_t{0};
  }

 private:
  struct Tally {
    std::uint64_t values = 0;
    std::uint64_t bytes = 0;
  };

  void take_next();
  void drop();

  Store& store_;
  std::size_t shard_ = 0;
  Index::Place place_;  // in the shard's index
  Tally earlier_;       // of the shards before
  Tally here_;          // of this one, since its walk began
  std::uint64_t corrupt_ = 0;
  std::vector<Damaged> damaged_;
  std::optional<ValueCheck> check_;
};

}  // namespace infinistore
