#pragma once
// RegisteredMemory: a mapping that GPUs may read, and write if it is so mapped, chunk by chunk as
// it is used.
//
// Registering pins pages, 0.04 s for each GiB (measured), and populates those that are not there.

#include <cstddef>
#include <vector>

#include "core/base/result.h"
#include "core/device/gpu.h"

namespace infinistore {

class RegisteredMemory {
 public:
  // Without `may_write` GPUs only read: registering for more fails where the mapping forbids it.
  RegisteredMemory(std::byte* base, std::size_t bytes, bool may_write) noexcept
      : base_(base), bytes_(bytes), may_write_(may_write) {}
  ~RegisteredMemory();  // before the mapping goes, and after all copies
  RegisteredMemory(RegisteredMemory&& other) noexcept;
  RegisteredMemory& operator=(RegisteredMemory&&) = delete;

  // From now on all GPUs of this process see these bytes, under the host's address.
  Error cover(const Gpu& gpu, std::size_t offset, std::size_t bytes);

 private:
  std::size_t chunk_bytes(std::size_t chunk) const noexcept;

  std::byte* base_;
  std::size_t bytes_;
  bool may_write_;
  const Gpu* gpu_ = nullptr;         // that registered it
  std::vector<bool> is_registered_;  // of each chunk; empty: none
};

}  // namespace infinistore
