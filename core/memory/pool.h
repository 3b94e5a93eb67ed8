#pragma once
// Pool: all memory that a server offers, as regions cut into pages.  allocate(), free(),
// bytes_of().
//
//   server start: create() -> populate_some() on a thread of its own until it returns false
//   store:        allocate() -> extents -> bytes_of(extent) -> free()
//
// Only populated pages are given out: a touch of them cannot fail.  Thread-safe; its lock is a
// leaf.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/base/bytes.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/memory/extent.h"
#include "core/memory/region.h"

namespace infinistore {

struct PoolOptions {
  using HugePages = infinistore::HugePages;

  std::uint64_t bytes = 0;  // rounded down to whole pages of 4 KiB
  HugePages huge_pages = HugePages::kAuto;
  std::uint64_t region_bytes = 0;  // 0: chosen; else rounded up to 2 MiB
  bool populate_now = false;       // create() returns with everything populated: for tests
  bool populate_on_touch = false;  // counts as populated and is not: tests of sizes beyond memory
};

class Pool {
 public:
  static Result<Pool> create(const PoolOptions& options);
  Pool(Pool&&) noexcept;
  Pool& operator=(Pool&&) noexcept;
  ~Pool();

  // Populates the next `bytes` (rounded up to 2 MiB) and offers them.  What cannot be populated is
  // no longer capacity, and counts as failed.  Returns whether there is more to do.
  bool populate_some(std::uint64_t bytes);
  bool is_populated() const;
  bool has_unbegun() const;  // memory that nobody has begun to populate
  // If all is begun but others still populate: waits until one part more is done, some 30 ms at
  // most.  False: nobody is at it.
  bool await_populating() NO_THREAD_SAFETY_ANALYSIS;  // it knows no std::unique_lock

  // Whole pages, few extents where the free ones allow it; nullopt if less is free and populated,
  // or if the free pages are so scattered that kExtentsPerValueMax would not do.
  std::optional<Extents> allocate(std::uint64_t bytes);
  void free(const Extents& extents) noexcept;

  MutableBytes bytes_of(const Extent& extent) const noexcept;

  std::uint64_t capacity_bytes() const;  // populated and to be populated
  std::uint64_t populated_bytes() const;
  std::uint64_t failed_bytes() const;
  std::uint64_t free_bytes() const;       // of the capacity; allocated + free = capacity
  std::uint64_t available_bytes() const;  // free and populated

  std::uint32_t region_count() const noexcept;
  std::uint64_t region_bytes(std::uint32_t region) const noexcept;
  std::byte* region_base(std::uint32_t region) const noexcept;
  int region_fd(std::uint32_t region) const noexcept;
  int region_read_only_fd(std::uint32_t region) const noexcept;  // -1: there is no /proc
  bool has_huge_pages() const noexcept;

  // Whether exactly the pages under `owned`, each once, are allocated.  Empty if so, else what is
  // wrong.
  std::string check_integrity(std::span<const Extents* const> owned) const;

 private:
  struct State;
  explicit Pool(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace infinistore
