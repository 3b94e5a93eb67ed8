#pragma once
// PoolMemory: a server's pool as one device may read and write it; nobody else may.
//
// Registered a chunk at a time: by the background thread behind the populating, or by whoever needs
// a chunk before.  Any thread may use it.

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/memory/pool.h"
#include "core/transport/rdma/verbs/node.h"

namespace infinistore {

class PoolMemory {
 public:
  PoolMemory(const RdmaDevice& device, const Pool& pool);

  struct Place {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;  // from there on under one key
    std::uint32_t key = 0;
  };
  // Where the extent's bytes from `offset` on are.
  Result<Place> find(const Extent& extent, std::uint64_t offset);

  // Registers the next chunk that is populated; false: there is none by now.
  Result<bool> cover_some(std::uint64_t populated_bytes);

 private:
  struct Chunk {
    std::byte* base = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t end = 0;  // in the pool
    std::atomic<IbvMr*> registered{nullptr};
    OwnedMr owned;  // guarded by mutex_ until it is registered
  };

  Result<IbvMr*> cover(Chunk& chunk);

  const RdmaDevice& device_;
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> first_of_region_;
  Mutex mutex_;
  std::size_t next_ GUARDED_BY(mutex_) = 0;
};

}  // namespace infinistore
