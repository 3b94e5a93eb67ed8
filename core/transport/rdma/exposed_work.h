#pragma once
// From what a client exposes to the pieces that a device moves.

#include <cstddef>
#include <cstdint>

#include "core/base/result.h"
#include "core/memory/extent.h"
#include "core/transport/rdma/pool_memory.h"
#include "core/transport/rdma/work_queue.h"
#include "core/wire/exposure.h"

namespace infinistore {

// A place in an exposure, which outlives it.
class ExposedCursor {
 public:
  explicit ExposedCursor(const Exposure& exposure) noexcept : exposure_(exposure) {}

  bool at_end() const noexcept { return item_ == exposure_.items.size(); }
  void skip_item() noexcept;  // on whose first byte it stands

  struct Rest {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;  // of the segment; 0: the exposure's windows do not contain it
    std::uint32_t key = 0;
  };
  Rest rest() const noexcept;
  std::size_t item() const noexcept { return item_; }
  void move(std::uint64_t bytes) noexcept;  // within the segment

 private:
  const Exposure& exposure_;
  std::size_t item_ = 0;
  std::size_t segment_ = 0;  // of the item
  std::size_t address_ = 0;  // of all
  std::uint64_t offset_ = 0;
};

// Adds the bytes between one item's extents and its segments to `work`.  kInvalid: the exposure
// does not say where they all are; kSetup: the pool is not registered.
Result<bool> add_item(const Extents& extents, ExposedCursor& at, PoolMemory& memory, Work& work);

}  // namespace infinistore
