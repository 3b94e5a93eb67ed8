#pragma once
// Gpu: one of this machine's, in its primary context, which is also PyTorch's.
//
// Any thread.  Made once for each device, and never destroyed: CUDA may be gone before our statics.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/device/driver.h"

namespace infinistore {

// Which way bytes go.
enum class Way { kToHost, kToDevice };

// What moves them.  Multiprocessors are faster for small blocks, and sum on the way; the model's
// kernels wait for them, though, longer than such a copy takes where each of them wants all.
enum class Mover { kMultiprocessors, kCopyEngine };

class Gpu;

// Makes a GPU's context the calling thread's, for its own life.
class CurrentContext {
 public:
  explicit CurrentContext(const Gpu& gpu) noexcept;
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const Driver& driver_;
};

// Memory of the host that GPUs see, lent from a GPU's store of it.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(Gpu& gpu, std::byte* data, std::size_t bytes) noexcept
      : gpu_(&gpu), data_(data), bytes_(bytes) {}
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory();

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  Gpu* gpu_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class Gpu {
  struct Private {};

 public:
  // kSetup: there is no CUDA, or no such device.
  static Result<Gpu*> of(int ordinal);
  // Whose memory this is; kInvalid: no device's.
  static Result<int> owner_of(std::uint64_t address);
  Gpu(Private, const Driver& driver, int ordinal) noexcept : driver_(driver), ordinal_(ordinal) {}
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  int ordinal() const noexcept { return ordinal_; }
  const Driver& driver() const noexcept { return driver_; }
  CuContext context() const noexcept { return context_; }

  // kInvalid: one of these ranges, all of so many bytes, is not this device's memory.
  Error check_memory(std::span<const std::uint64_t> addresses, std::uint64_t bytes) const;

  // kSetup: no more can be had.
  Result<PinnedMemory> pinned(std::size_t bytes);

  // For a copy, in turns two: while one ends, another's bytes already fill the bus.
  CuStream copies(Way way) noexcept {
    return lanes_[lane(way)].copies[turns_.fetch_add(1, std::memory_order_relaxed) % 2];
  }
  // For the calls at their ends.
  CuStream ends(Way way) const noexcept { return lanes_[lane(way)].ends; }
  // For waiting until a caller's stream has come to some point: one of ours for each of theirs.
  Result<CuStream> watcher(CuStream caller);
  CuFunction kernel(Way way, bool sums) const noexcept { return kernels_[lane(way)][sums ? 1 : 0]; }
  CuFunction sum_kernel() const noexcept { return sum_kernel_; }  // of a device's memory

  // A mark without a time.
  Error make_event(CuEvent& event) const;
  void destroy_event(CuEvent event) const noexcept;

  // kSetup with the status' name, or kOk.
  Error check(CuStatus status, const char* what) const;

 private:
  friend class PinnedMemory;
  struct Lane {
    CuStream copies[2] = {};
    CuStream ends = nullptr;
  };

  struct Allocation;

  Result<Allocation> allocation_of(std::uint64_t address) const;
  static Result<std::unique_ptr<Gpu>> open(int ordinal);
  Error begin();
  Error load_kernels();
  Error make_streams();
  static std::size_t lane(Way way) noexcept { return way == Way::kToHost ? 0 : 1; }
  void give_back(std::byte* data, std::size_t bytes) noexcept;

  const Driver& driver_;
  const int ordinal_;
  CuContext context_ = nullptr;
  Lane lanes_[2];
  std::atomic<unsigned> turns_{0};
  CuFunction kernels_[2][2] = {};
  CuFunction sum_kernel_ = nullptr;
  Mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> idle_ GUARDED_BY(mutex_);  // pinned, by size
  std::map<CuStream, CuStream> watchers_ GUARDED_BY(mutex_);
  std::vector<CuStream> watcher_streams_ GUARDED_BY(mutex_);
};

}  // namespace infinistore
