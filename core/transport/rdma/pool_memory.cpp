#include "core/transport/rdma/pool_memory.h"

#include <algorithm>

namespace infinistore {
namespace {

// Some tens of ms to register, if a worker has to.
constexpr std::uint64_t kChunkBytes = std::uint64_t{256} << 20;

std::size_t chunk_count(std::uint64_t bytes) noexcept {
  return static_cast<std::size_t>((bytes + kChunkBytes - 1) / kChunkBytes);
}

std::size_t chunk_count(const Pool& pool) noexcept {
  std::size_t count = 0;
  for (std::uint32_t i = 0; i < pool.region_count(); ++i)
    count += chunk_count(pool.region_bytes(i));
  return count;
}

}  // namespace

PoolMemory::PoolMemory(const RdmaDevice& device, const Pool& pool)
    : device_(device), chunks_(chunk_count(pool)) {
  std::size_t next = 0;
  std::uint64_t at = 0;
  for (std::uint32_t region = 0; region < pool.region_count(); ++region) {
    first_of_region_.push_back(next);
    for (std::uint64_t offset = 0; offset < pool.region_bytes(region); offset += kChunkBytes) {
      auto& chunk = chunks_[next++];
      chunk.base = pool.region_base(region) + offset;
      chunk.bytes = std::min(kChunkBytes, pool.region_bytes(region) - offset);
      at += chunk.bytes;
      chunk.end = at;
    }
  }
}

Result<PoolMemory::Place> PoolMemory::find(const Extent& extent, std::uint64_t offset) {
  const std::uint64_t at = extent.offset + offset;
  auto& chunk = chunks_[first_of_region_[extent.region] + at / kChunkBytes];
  const auto registered = cover(chunk);
  if (!registered) return registered.error();
  const std::uint64_t in_chunk = at % kChunkBytes;
  return Place{.address = reinterpret_cast<std::uintptr_t>(chunk.base) + in_chunk,
               .bytes = std::min(extent.bytes - offset, chunk.bytes - in_chunk),
               .key = registered.value()->local_key};
}

Result<IbvMr*> PoolMemory::cover(Chunk& chunk) {
  if (auto* const known = chunk.registered.load(std::memory_order_acquire)) return known;
  const MutexLock lock(mutex_);
  if (auto* const known = chunk.registered.load(std::memory_order_relaxed)) return known;
  auto made = device_.register_memory({chunk.base, chunk.bytes}, kIbvLocalWrite);
  if (!made) return made.error();
  chunk.owned = std::move(*made);
  chunk.registered.store(chunk.owned.get(), std::memory_order_release);
  return chunk.owned.get();
}

Result<bool> PoolMemory::cover_some(std::uint64_t populated_bytes) {
  std::size_t index = 0;
  {
    const MutexLock lock(mutex_);
    if (next_ == chunks_.size() || chunks_[next_].end > populated_bytes) return false;
    index = next_++;
  }
  const auto made = cover(chunks_[index]);
  if (!made) return made.error();
  return true;
}

}  // namespace infinistore
