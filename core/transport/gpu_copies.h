#pragma once
// GpuCopies: a link's copies by GPUs that are on their way.
//
// Belongs to the thread of its link, which the end of each copy wakes.

#include <cstdint>
#include <vector>

#include "core/base/result.h"
#include "core/device/tile_copy.h"

namespace infinistore {

struct Transfer;

// Finds pinned memory for all items of a transfer, one behind the other.  Requests in flight bound
// how much there is.
Error stage(Transfer& transfer);
// The items are in it from now on, and where they were in transfer.targets.
void enter_staging(Transfer& transfer);
// And back.
void leave_staging(Transfer& transfer);

class GpuCopies {
 public:
  explicit GpuCopies(Waker& waker) noexcept : waker_(waker) {}
  ~GpuCopies() { wait(); }
  GpuCopies(const GpuCopies&) = delete;
  GpuCopies& operator=(const GpuCopies&) = delete;

  // The transfer stays where it is until take() has told of its end, or wait() has returned.
  Error start(Transfer& transfer, TileList tiles, Way way, bool sums);
  // Between the items and where they are staged.
  Error start_staged(Transfer& transfer, Way way, bool sums);
  bool empty() const noexcept { return moving_.empty(); }
  bool has(std::uint64_t request_id) const noexcept;
  // The requests whose copies are over, since the last call.
  std::vector<std::uint64_t> take();
  // Until none is on its way.
  void wait() noexcept;

 private:
  Waker& waker_;
  std::vector<Transfer*> moving_;
};

}  // namespace infinistore
