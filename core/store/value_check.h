#pragma once
// ValueCheck: compares a value's bytes with the sums that it was put with, in steps.

#include <cstddef>
#include <cstdint>

#include "core/base/checksum.h"
#include "core/store/store.h"

namespace infinistore {

class ValueCheck {
 public:
  enum class State : std::uint8_t { kGoesOn, kRight, kCorrupt };

  explicit ValueCheck(Lease lease) noexcept : lease_(std::move(lease)) {}

  // Sums so many bytes more at most.  Not after it said anything but kGoesOn.
  State step(std::uint64_t bytes_max) noexcept;

  std::uint64_t done_bytes() const noexcept { return done_bytes_; }
  const Lease& lease() const noexcept { return lease_; }

 private:
  Lease lease_;
  std::size_t part_ = 0;
  std::uint64_t done_bytes_ = 0;
  RunningChecksum sum_{0};  // of the part's bytes so far
};

}  // namespace infinistore
