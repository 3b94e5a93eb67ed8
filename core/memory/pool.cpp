#include "core/memory/pool.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/memory/buddy.h"

namespace infinistore {
namespace {

constexpr std::uint64_t kRegionBytesMin = std::uint64_t{256} << 20;

constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t to) {
  return (bytes + to - 1) / to * to;
}

std::uint64_t chosen_region_bytes(const PoolOptions& options, std::uint64_t bytes) {
  const std::uint64_t wanted = options.region_bytes != 0
                                   ? options.region_bytes
                                   : std::max(kRegionBytesMin, bytes / kRegionsMax);
  return round_up(wanted, kPageBytesMax);
}

}  // namespace

struct Pool::State {
  State(std::vector<Region> regions_made, std::uint64_t region_bytes_chosen, std::uint64_t bytes)
      : regions(std::move(regions_made)),
        region_bytes(region_bytes_chosen),
        total_bytes(bytes),
        capacity_bytes(bytes),
        buddy(bytes / kPageBytesMin) {}

  // All regions but the last have region_bytes, so a page's number says where it is.
  Extent extent_of(PageRun run) const noexcept {
    const std::uint64_t start = run.first * kPageBytesMin;
    return {.region = static_cast<std::uint32_t>(start / region_bytes),
            .offset = start % region_bytes,
            .bytes = run.count * kPageBytesMin};
  }
  PageRun run_of(const Extent& extent) const noexcept {
    KV_CHECK(extent.region < regions.size() && extent.offset % kPageBytesMin == 0 &&
             extent.offset < regions[extent.region].bytes() &&
             extent.bytes <= regions[extent.region].bytes() - extent.offset);
    return {.first = (extent.region * region_bytes + extent.offset) / kPageBytesMin,
            .count = whole_pages(extent.bytes) / kPageBytesMin};
  }
  // Adjoining pages of two regions are not adjoining memory.
  void append_extents(PageRun run, Extents& extents) const {
    const std::uint64_t region_pages = region_bytes / kPageBytesMin;
    while (run.count > 0) {
      const std::uint64_t count = std::min(run.count, region_pages - run.first % region_pages);
      extents.push_back(extent_of({.first = run.first, .count = count}));
      run = {.first = run.first + count, .count = run.count - count};
    }
  }

  std::vector<Region> regions;
  const std::uint64_t region_bytes;
  const std::uint64_t total_bytes;

  mutable Mutex mutex;
  std::condition_variable populated;  // a part more, or it failed
  std::uint64_t capacity_bytes GUARDED_BY(mutex);
  std::uint64_t next_byte GUARDED_BY(mutex) = 0;  // the first that nobody began to populate
  std::uint64_t populated_bytes GUARDED_BY(mutex) = 0;
  std::uint64_t failed_bytes GUARDED_BY(mutex) = 0;
  Buddy buddy GUARDED_BY(mutex);
  std::vector<PageRun> runs GUARDED_BY(mutex);  // kept, so that allocate() seldom asks the heap
};

Result<Pool> Pool::create(const PoolOptions& options) {
  const std::uint64_t bytes = options.bytes / kPageBytesMin * kPageBytesMin;
  if (bytes == 0) return Error{Code::kSetup, "a pool needs at least 4096 bytes"};
  const std::uint64_t region_bytes = chosen_region_bytes(options, bytes);
  if ((bytes - 1) / region_bytes >= kRegionsMax) {
    return Error{Code::kSetup, "a pool of " + std::to_string(bytes) + " bytes has more than " +
                                   std::to_string(kRegionsMax) + " regions of " +
                                   std::to_string(region_bytes) + " bytes"};
  }
  std::vector<Region> regions;
  for (std::uint64_t at = 0; at < bytes; at += region_bytes) {
    auto region = Region::create(std::min(region_bytes, bytes - at), options.huge_pages);
    if (!region) return region.error();
    regions.push_back(std::move(*region));
  }
  Pool pool(std::make_unique<State>(std::move(regions), region_bytes, bytes));
  if (options.populate_on_touch) {
    State& state = *pool.state_;
    const MutexLock lock(state.mutex);
    state.next_byte = state.populated_bytes = bytes;
    state.buddy.give({.first = 0, .count = bytes / kPageBytesMin});
  } else if (options.populate_now) {
    while (pool.populate_some(bytes)) {
    }
    if (pool.failed_bytes() > 0) {
      return Error{Code::kSetup, std::to_string(pool.failed_bytes()) + " of the pool's " +
                                     std::to_string(bytes) + " bytes could not be populated"};
    }
  }
  return pool;
}

Pool::Pool(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Pool::Pool(Pool&&) noexcept = default;
Pool& Pool::operator=(Pool&&) noexcept = default;
Pool::~Pool() = default;

bool Pool::populate_some(std::uint64_t bytes) {
  State& state = *state_;
  std::uint64_t start = 0;
  std::uint64_t length = 0;
  {
    const MutexLock lock(state.mutex);
    start = state.next_byte;
    if (start == state.total_bytes) return false;
    const std::uint64_t region_end = start / state.region_bytes * state.region_bytes +
                                     state.regions[start / state.region_bytes].bytes();
    const std::uint64_t wanted = bytes < region_end ? std::max(bytes, kPageBytesMax) : region_end;
    length = std::min(round_up(wanted, kPageBytesMax), region_end - start);
    state.next_byte += length;
  }
  // Not under the lock: a GiB takes about a second.  The chunk is ours alone.
  Region& region = state.regions[start / state.region_bytes];
  const bool is_backed = region.populate(start % state.region_bytes, length);

  const MutexLock lock(state.mutex);
  state.populated.notify_all();
  if (is_backed) {
    state.populated_bytes += length;
    state.buddy.give({.first = start / kPageBytesMin, .count = length / kPageBytesMin});
  } else {
    state.failed_bytes += length;
    state.capacity_bytes -= length;
  }
  return state.next_byte < state.total_bytes;
}

bool Pool::is_populated() const {
  const MutexLock lock(state_->mutex);
  return state_->populated_bytes + state_->failed_bytes == state_->total_bytes;
}

bool Pool::has_unbegun() const {
  const MutexLock lock(state_->mutex);
  return state_->next_byte < state_->total_bytes;
}

bool Pool::await_populating() {
  State& state = *state_;
  std::unique_lock lock(state.mutex.native());
  const std::uint64_t before = state.populated_bytes + state.failed_bytes;
  if (state.next_byte == before) return false;
  while (state.populated_bytes + state.failed_bytes == before) state.populated.wait(lock);
  return true;
}

std::optional<Extents> Pool::allocate(std::uint64_t bytes) {
  State& state = *state_;
  if (bytes == 0 || bytes > state.total_bytes) return std::nullopt;
  const MutexLock lock(state.mutex);
  state.runs.clear();
  if (!state.buddy.take(whole_pages(bytes) / kPageBytesMin, state.runs)) return std::nullopt;
  // Each run can cross into another region, and be two extents then.
  if (state.runs.size() > kExtentsPerValueMax - kRegionsMax) {
    for (const PageRun run : state.runs) state.buddy.give(run);
    return std::nullopt;
  }
  Extents extents;
  extents.reserve(state.runs.size());
  for (const PageRun run : state.runs) state.append_extents(run, extents);
  extents.back().bytes -= whole_pages(bytes) - bytes;
  return extents;
}

void Pool::free(const Extents& extents) noexcept {
  const MutexLock lock(state_->mutex);
  // In falling order, for the reason that Buddy::give() has.
  for (auto extent = extents.rbegin(); extent != extents.rend(); ++extent) {
    state_->buddy.give(state_->run_of(*extent));
  }
}

MutableBytes Pool::bytes_of(const Extent& extent) const noexcept {
  KV_CHECK(extent.region < state_->regions.size());
  const Region& region = state_->regions[extent.region];
  KV_CHECK(extent.offset <= region.bytes() && extent.bytes <= region.bytes() - extent.offset);
  return {region.base() + extent.offset, extent.bytes};
}

std::uint64_t Pool::capacity_bytes() const {
  const MutexLock lock(state_->mutex);
  return state_->capacity_bytes;
}

std::uint64_t Pool::populated_bytes() const {
  const MutexLock lock(state_->mutex);
  return state_->populated_bytes;
}

std::uint64_t Pool::failed_bytes() const {
  const MutexLock lock(state_->mutex);
  return state_->failed_bytes;
}

std::uint64_t Pool::free_bytes() const {
  const MutexLock lock(state_->mutex);
  return state_->capacity_bytes - state_->populated_bytes +
         state_->buddy.free_count() * kPageBytesMin;
}

std::uint64_t Pool::available_bytes() const {
  const MutexLock lock(state_->mutex);
  return state_->buddy.free_count() * kPageBytesMin;
}

std::uint32_t Pool::region_count() const noexcept {
  return static_cast<std::uint32_t>(state_->regions.size());
}
std::uint64_t Pool::region_bytes(std::uint32_t region) const noexcept {
  return state_->regions[region].bytes();
}
std::byte* Pool::region_base(std::uint32_t region) const noexcept {
  return state_->regions[region].base();
}
int Pool::region_fd(std::uint32_t region) const noexcept { return state_->regions[region].fd(); }
int Pool::region_read_only_fd(std::uint32_t region) const noexcept {
  return state_->regions[region].read_only_fd();
}

bool Pool::has_huge_pages() const noexcept {
  return std::ranges::all_of(state_->regions, &Region::has_huge_pages);
}

std::string Pool::check_integrity(std::span<const Extents* const> owned) const {
  const MutexLock lock(state_->mutex);
  if (auto wrong = state_->buddy.check_integrity(); !wrong.empty()) return wrong;
  std::vector<PageRun> runs;
  for (const Extents* extents : owned) {
    for (const Extent& extent : *extents) runs.push_back(state_->run_of(extent));
  }
  std::ranges::sort(runs, {}, &PageRun::first);
  std::uint64_t owned_count = 0;
  std::uint64_t end = 0;
  for (const PageRun run : runs) {
    if (run.first < end) return "page " + std::to_string(run.first) + " has two owners";
    for (std::uint64_t page = run.first; page < run.first + run.count; ++page) {
      if (state_->buddy.is_free(page)) return "page " + std::to_string(page) + " is owned and free";
    }
    end = run.first + run.count;
    owned_count += run.count;
  }
  const std::uint64_t populated_count = state_->populated_bytes / kPageBytesMin;
  if (owned_count + state_->buddy.free_count() != populated_count) {
    return std::to_string(populated_count) + " pages are populated, but " +
           std::to_string(owned_count) + " owned and " +
           std::to_string(state_->buddy.free_count()) + " free";
  }
  return "";
}

}  // namespace infinistore
