#include "core/device/registered_memory.h"

#include <algorithm>
#include <utility>

namespace infinistore {
namespace {

constexpr unsigned kRegisterPortable = 1;  // for every context of this process
constexpr unsigned kRegisterReadOnly = 8;  // not every device can: then blocks are staged

// 3 ms for its registration.
constexpr std::size_t kChunkBytes = std::size_t{64} << 20;

}  // namespace

RegisteredMemory::RegisteredMemory(RegisteredMemory&& other) noexcept
    : base_(other.base_),
      bytes_(other.bytes_),
      may_write_(other.may_write_),
      gpu_(std::exchange(other.gpu_, nullptr)),
      is_registered_(std::move(other.is_registered_)) {}

RegisteredMemory::~RegisteredMemory() {
  if (gpu_ == nullptr) return;
  const CurrentContext current(*gpu_);
  for (std::size_t i = 0; i < is_registered_.size(); ++i) {
    if (is_registered_[i]) gpu_->driver().host_unregister(base_ + i * kChunkBytes);
  }
}

std::size_t RegisteredMemory::chunk_bytes(std::size_t chunk) const noexcept {
  return std::min(kChunkBytes, bytes_ - chunk * kChunkBytes);
}

Error RegisteredMemory::cover(const Gpu& gpu, std::size_t offset, std::size_t bytes) {
  if (is_registered_.empty()) is_registered_.resize((bytes_ + kChunkBytes - 1) / kChunkBytes);
  for (std::size_t i = offset / kChunkBytes; i <= (offset + bytes - 1) / kChunkBytes; ++i) {
    if (is_registered_[i]) continue;
    if (gpu_ == nullptr) gpu_ = &gpu;
    const CurrentContext current(*gpu_);
    const unsigned flags = may_write_ ? kRegisterPortable : kRegisterPortable | kRegisterReadOnly;
    const auto error =
        gpu_->check(gpu_->driver().host_register(base_ + i * kChunkBytes, chunk_bytes(i), flags),
                    "registering the server's memory");
    if (error.code != Code::kOk) return error;
    is_registered_[i] = true;
  }
  return {Code::kOk, {}};
}

}  // namespace infinistore
