#pragma once
// ClientPool: the server's pool, mapped into a client.  What the server says of it is checked.

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/device/registered_memory.h"
#include "core/memory/extent.h"

namespace infinistore {

enum class PoolAccess : std::uint8_t { kReadWrite, kRead };

class ClientPool {
 public:
  // Refuses descriptors that are smaller than said, or that could be shrunk under our feet.
  static Result<ClientPool> map(std::vector<UniqueFd> fds, std::span<const std::uint64_t> bytes,
                                PoolAccess access);

  ClientPool(ClientPool&&) noexcept = default;
  ClientPool& operator=(ClientPool&&) noexcept = default;

  // Who writes asks first: a write to what is mapped for reading ends the process.
  bool may_write() const noexcept { return access_ == PoolAccess::kReadWrite; }

  // The memory of an extent, its pages mapped; nullopt: it is not inside of the pool.
  std::optional<MutableBytes> bytes_of(const Extent& extent) noexcept;
  // The same, as memory that GPUs see; kProtocol: it is not inside; kSetup: CUDA refuses.
  Result<MutableBytes> bytes_for(const Gpu& gpu, const Extent& extent);
  // Shows all of it to GPUs, which takes a while.
  Error register_all(const Gpu& gpu);

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* base) const noexcept;
  };
  struct Mapping {
    std::unique_ptr<std::byte, Unmap> base;
    std::vector<bool> is_mapped;  // of each chunk: its pages are in our page table
    RegisteredMemory registered;  // goes before the mapping
  };

  explicit ClientPool(PoolAccess access) noexcept : access_(access) {}
  static Result<Mapping> map_one(int fd, std::uint64_t bytes, PoolAccess access);
  // Of an extent that is inside; nullptr: it is not.
  Mapping* region_of(const Extent& extent) noexcept;

  PoolAccess access_;
  std::vector<Mapping> regions_;
};

}  // namespace infinistore
