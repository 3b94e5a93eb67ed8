#pragma once
// GpuCopyLoop: the copy kernel alone, between a GPU's scattered blocks and registered memory.

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/bytes.h"
#include "core/device/gpu.h"
#include "core/device/registered_memory.h"
#include "core/device/tile_copy.h"

namespace infinistore {

class GpuCopyLoop {
 public:
  // Registers `host`, which stays mapped as long as this lives.
  GpuCopyLoop(Gpu& gpu, MutableBytes host) noexcept
      : gpu_(gpu), host_(host), registered_(host.data(), host.size(), true) {}

  // Block i at host + offsets[i] to or from device[i], in one launch; nanoseconds until it was
  // over, or why it failed.
  Result<std::uint64_t> run(std::span<const std::uint64_t> device,
                            std::span<const std::uint64_t> offsets, std::uint64_t block_bytes,
                            Way way, bool sums, LaunchShape shape);
  // Of each block of the last run with sums.
  const std::vector<std::uint64_t>& sums() const noexcept { return sums_; }

 private:
  Gpu& gpu_;
  MutableBytes host_;
  RegisteredMemory registered_;
  std::vector<std::uint64_t> sums_;
};

}  // namespace infinistore
