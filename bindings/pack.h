#pragma once
// Pack: keys and places of a batch, parsed from Python and checked, on their way into a BatchSpec.

#include <nanobind/nanobind.h>

#include "core/client/batch.h"

namespace infinistore {

class Pack {
 public:
  // From a list of str or bytes, or a list of (key, offset) tuples.
  static Pack from_keys(nanobind::list keys);
  static Pack from_blocks(nanobind::list blocks);

  std::size_t size() const noexcept { return spec_.keys.size(); }

  // Block i takes `page_bytes` from `base` + its offset * element_bytes; all must lie in the
  // `cache_bytes` from base on.  `offsets`: None if they came with the blocks.
  void place(std::uint64_t base, std::uint64_t cache_bytes, std::uint64_t element_bytes,
             std::uint64_t page_bytes, nanobind::object offsets);
  // Block i takes segments_per_key segments of segment_bytes, at these addresses.
  void place_segments(nanobind::object addresses, std::size_t segments_per_key,
                      std::uint64_t segment_bytes);
  // Lists that nobody else has.
  void set_chain(nanobind::list parents, nanobind::list depths);
  // For a get, once placed: a block's bytes are the most that fits.
  void set_up_to();

  // For a cluster's client, which sends to each node its part.  The hash of each key's group (what
  // stands in braces, or the whole key), as native 64-bit integers: cluster/placement.py agrees.
  nanobind::bytes groups() const;
  Pack part(nanobind::object indexes) const;
  std::string_view key(std::size_t index) const;
  std::uint64_t range_bytes() const noexcept { return spec_.range_bytes(); }

  BatchSpec take() { return std::move(spec_); }
  KeyList take_keys() { return std::move(spec_.keys); }

 private:
  BatchSpec spec_;
  std::vector<std::uint64_t> offsets_;  // of from_blocks()
};

void init_pack(nanobind::module_& module);

}  // namespace infinistore
