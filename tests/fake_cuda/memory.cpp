#include "tests/fake_cuda/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>

namespace fake_cuda {
namespace {

// The range that `address` lies in.
template <class Ranges>
auto range_at(Ranges& ranges, std::uintptr_t address) {
  auto next = ranges.upper_bound(address);
  if (next == ranges.begin()) return ranges.end();
  const auto found = std::prev(next);
  return address - found->first < found->second.bytes ? found : ranges.end();
}

// Gives all pages of a range their memory, as pinning does.  False: some are not mapped, or may
// not be written.
bool populate(void* memory, std::size_t bytes, bool is_read_only) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(memory) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(memory) + bytes;
  auto* const first = reinterpret_cast<void*>(begin);
  const int how = is_read_only ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;
  if (::madvise(first, end - begin, how) == 0) return true;
  // An older kernel has neither.
  return errno == EINVAL && ::madvise(first, end - begin, MADV_POPULATE_READ) != 0 &&
         errno == EINVAL;
}

}  // namespace

Memory& Memory::all() {
  static Memory& memory = *std::make_unique<Memory>().release();
  return memory;
}

CUresult Memory::allocate(Context& context, std::size_t bytes, std::uintptr_t& address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const int fd = ::memfd_create("fake-cuda", MFD_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  void* shown = MAP_FAILED;
  void* writable = MAP_FAILED;
  if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    shown = ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    writable = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  ::close(fd);
  if (shown == MAP_FAILED || writable == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  address = reinterpret_cast<std::uintptr_t>(shown);
  const std::unique_lock lock(mutex_);
  device_[address] = {
      .context = &context, .bytes = bytes, .writable = static_cast<std::byte*>(writable)};
  return CUDA_SUCCESS;
}

CUresult Memory::free(std::uintptr_t address) {
  const std::unique_lock lock(mutex_);
  const auto found = device_.find(address);
  if (found == device_.end()) return CUDA_ERROR_INVALID_VALUE;
  ::munmap(reinterpret_cast<void*>(address), found->second.bytes);
  ::munmap(found->second.writable, found->second.bytes);
  device_.erase(found);
  return CUDA_SUCCESS;
}

CUresult Memory::allocate_host(const Context& context, std::size_t bytes, bool is_portable,
                               void** memory) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  void* const made = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (made == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *memory = made;
  const std::unique_lock lock(mutex_);
  host_[reinterpret_cast<std::uintptr_t>(made)] = {
      .context = &context, .bytes = bytes, .is_portable = is_portable, .is_pinned = true};
  return CUDA_SUCCESS;
}

CUresult Memory::free_host(void* memory) {
  const std::unique_lock lock(mutex_);
  const auto found = host_.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == host_.end() || !found->second.is_pinned) return CUDA_ERROR_INVALID_VALUE;
  ::munmap(memory, found->second.bytes);
  host_.erase(found);
  return CUDA_SUCCESS;
}

bool Memory::overlaps_locked(std::uintptr_t address, std::size_t bytes) const {
  const auto next = host_.lower_bound(address);
  const bool meets_next = next != host_.end() && next->first - address < bytes;
  return meets_next || range_at(host_, address) != host_.end();
}

CUresult Memory::register_host(const Context& context, void* memory, std::size_t bytes,
                               bool is_portable, bool is_read_only) {
  if (memory == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const std::unique_lock lock(mutex_);
  if (overlaps_locked(address, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  if (!populate(memory, bytes, is_read_only)) return CUDA_ERROR_INVALID_VALUE;
  host_[address] = {
      .context = &context, .bytes = bytes, .is_portable = is_portable, .is_pinned = false};
  return CUDA_SUCCESS;
}

CUresult Memory::unregister_host(void* memory) {
  const std::unique_lock lock(mutex_);
  const auto found = host_.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == host_.end() || found->second.is_pinned) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  host_.erase(found);
  return CUDA_SUCCESS;
}

CUresult Memory::attribute(std::uintptr_t address, int attribute, void* value) {
  const std::shared_lock lock(mutex_);
  const auto device = range_at(device_, address);
  const auto host = range_at(host_, address);
  const bool is_device = device != device_.end();
  if (!is_device && host == host_.end()) return CUDA_ERROR_INVALID_VALUE;
  const Context* const owner = is_device ? device->second.context : host->second.context;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(value) = handle_of(const_cast<Context*>(owner));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = is_device ? kMemoryTypeDevice : kMemoryTypeHost;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = owner->device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(value) = is_device ? device->first : host->first;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<std::size_t*>(value) = is_device ? device->second.bytes : host->second.bytes;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

MemoryTotals Memory::totals() {
  const std::shared_lock lock(mutex_);
  MemoryTotals totals;
  for (const auto& [address, range] : device_) totals.device_bytes += range.bytes;
  for (const auto& [address, range] : host_) {
    (range.is_pinned ? totals.pinned_bytes : totals.registered_bytes) += range.bytes;
    ++(range.is_pinned ? totals.pinned_ranges : totals.registered_ranges);
  }
  return totals;
}

std::byte* Memory::View::device(const Context& context, std::uintptr_t address,
                                std::size_t bytes) const {
  const auto found = range_at(memory_.device_, address);
  if (found == memory_.device_.end()) return nullptr;
  const auto& range = found->second;
  const std::size_t offset = address - found->first;
  if (range.context->device != context.device || bytes > range.bytes - offset) return nullptr;
  return range.writable + offset;
}

std::byte* Memory::View::host(const Context& context, std::uintptr_t address,
                              std::size_t bytes) const {
  // Ranges that adjoin are as good as one.
  for (std::uintptr_t at = address; at - address < bytes;) {
    const auto found = range_at(memory_.host_, at);
    if (found == memory_.host_.end()) return nullptr;
    if (!found->second.is_portable && found->second.context != &context) return nullptr;
    at = found->first + found->second.bytes;
  }
  return reinterpret_cast<std::byte*>(address);
}

}  // namespace fake_cuda
