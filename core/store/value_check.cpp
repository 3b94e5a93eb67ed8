#include "core/store/value_check.h"

#include <algorithm>
#include <span>

#include "core/store/ranges/part_sums.h"

namespace infinistore {

ValueCheck::State ValueCheck::step(std::uint64_t bytes_max) noexcept {
  const Entry& entry = *lease_.entry_;
  const Part whole{.offset = 0, .checksum = entry.checksum};
  const auto parts =
      entry.parts ? std::span<const Part>(*entry.parts) : std::span<const Part>(&whole, 1);
  while (bytes_max > 0) {
    const std::uint64_t end =
        part_ + 1 < parts.size() ? parts[part_ + 1].offset : entry.value_bytes;
    const std::uint64_t bytes = std::min(bytes_max, end - done_bytes_);
    add_bytes(lease_.store_->pool(), entry.extents, {.offset = done_bytes_, .bytes = bytes}, sum_);
    done_bytes_ += bytes;
    bytes_max -= bytes;
    if (done_bytes_ < end) break;
    if (sum_.finish() != parts[part_].checksum) return State::kCorrupt;
    if (done_bytes_ == entry.value_bytes) return State::kRight;
    ++part_;
    sum_ = RunningChecksum(done_bytes_);
  }
  return State::kGoesOn;
}

}  // namespace infinistore
