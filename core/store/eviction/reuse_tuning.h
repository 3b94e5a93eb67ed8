#pragma once
// ReuseTuning: the numbers of the eviction policy `reuse`.  Chosen on generated workloads by
// benchmarks/derive_reuse.py, which is also the only one to set others.

#include <cstdint>

namespace infinistore {

struct ReuseTuning {
  std::uint64_t young_part = 4;      // stays: what is younger than this part of the oldest's age
  std::uint64_t middle_part = 8;     // the second line of a kind begins at this part of that age
  std::uint64_t seen_per_entry = 3;  // keys an epoch is long, for each entry held

  std::uint64_t learn_every_max = 4096;  // samples
  double samples_halved = 8192;          // what was counted so many samples ago counts half

  // Before anything is known: this part of those that waited until some age are used before they
  // wait twice as long (about: the hazard falls as the age grows, as it does for LRU's assumption),
  // and both kinds alike.  The weights say how many samples it takes to say otherwise.
  double prior_hits = 0.025;
  double prior_of_ages = 100;  // waiting at an age, of any kind
  double prior_of_scale = 20;  // hits of a kind
  double prior_of_kind = 400;  // waiting at an age, of a kind
};

}  // namespace infinistore
