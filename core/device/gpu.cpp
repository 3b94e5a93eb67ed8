#include "core/device/gpu.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "core/device/copy_tiles_ptx.h"

namespace infinistore {
namespace {

// As in cuda.h.
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kHostPortable = 1;  // for every context of this process
constexpr int kAttributeHostPointers = 91;
constexpr int kPointerContext = 1;
constexpr int kPointerMemoryType = 2;
constexpr int kPointerOrdinal = 9;
constexpr int kPointerRangeStart = 11;
constexpr int kPointerRangeBytes = 12;
constexpr unsigned kMemoryTypeDevice = 2;

constexpr char kAsking[] = "asking whose memory an address is";

constexpr std::size_t kPinnedBytesMin = 64 * 1024;
// Callers' streams beyond these share watchers: a wait for one may then wait for another, too.
constexpr std::size_t kWatchersMax = 16;

std::string hex(std::uint64_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (; value > 0; value /= 16) text.insert(text.begin(), kDigits[value % 16]);
  return "0x" + (text.empty() ? "0" : text);
}

}  // namespace

struct Gpu::Allocation {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  bool holds(std::uint64_t address, std::uint64_t bytes) const noexcept {
    return address >= begin && address < end && bytes <= end - address;
  }
};

CurrentContext::CurrentContext(const Gpu& gpu) noexcept : driver_(gpu.driver()) {
  driver_.push_context(gpu.context());
}

CurrentContext::~CurrentContext() {
  CuContext popped = nullptr;
  driver_.pop_context(&popped);
}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) gpu_->give_back(data_, bytes_);
}

Result<Gpu*> Gpu::of(int ordinal) {
  static Mutex mutex;
  static auto& gpus = *std::make_unique<std::map<int, std::unique_ptr<Gpu>>>().release();
  const MutexLock lock(mutex);
  const auto found = gpus.find(ordinal);
  if (found != gpus.end()) return found->second.get();
  auto gpu = open(ordinal);
  if (!gpu) return gpu.error();
  return gpus.emplace(ordinal, std::move(*gpu)).first->second.get();
}

Result<int> Gpu::owner_of(std::uint64_t address) {
  const auto any = of(0);  // CUDA answers in some context only
  if (!any) return any.error();
  const CurrentContext current(*any.value());
  int ordinal = -1;
  const auto status = any.value()->driver_.pointer_attribute(&ordinal, kPointerOrdinal, address);
  if (status != kCuSuccess && status != kCuInvalidValue) return any.value()->check(status, kAsking);
  if (status != kCuSuccess || ordinal < 0) {
    return Error{Code::kInvalid, "memory at " + hex(address) +
                                     " is not a CUDA device's: was it freed, or is it the host's?"};
  }
  return ordinal;
}

Result<std::unique_ptr<Gpu>> Gpu::open(int ordinal) {
  const auto driver = load_driver();
  if (!driver) return driver.error();
  auto gpu = std::make_unique<Gpu>(Private{}, *driver.value(), ordinal);
  const auto begun = gpu->begin();
  if (begun.code != Code::kOk) return begun;
  return gpu;
}

Error Gpu::begin() {
  int count = 0;
  if (auto error = check(driver_.device_count(&count), "counting devices");
      error.code != Code::kOk) {
    return error;
  }
  if (ordinal_ < 0 || ordinal_ >= count) {
    return {Code::kSetup, "there is no CUDA device " + std::to_string(ordinal_) +
                              "; this process sees " + std::to_string(count) +
                              " (CUDA_VISIBLE_DEVICES)"};
  }
  CuDevice device = 0;
  int sees_host_pointers = 0;
  auto error = check(driver_.device_get(&device, ordinal_), "finding the device");
  if (error.code == Code::kOk) {
    error = check(driver_.device_attribute(&sees_host_pointers, kAttributeHostPointers, device),
                  "asking for the device's attributes");
  }
  if (error.code == Code::kOk && sees_host_pointers == 0) {
    return {Code::kSetup, "CUDA device " + std::to_string(ordinal_) +
                              " does not see the host's memory under its own addresses; give "
                              "memory of the host"};
  }
  if (error.code == Code::kOk) {
    error = check(driver_.primary_context(&context_, device), "opening the device");
  }
  if (error.code != Code::kOk) return error;
  const CurrentContext current(*this);
  error = load_kernels();
  return error.code == Code::kOk ? make_streams() : error;
}

Error Gpu::load_kernels() {
  CuModule module = nullptr;
  auto error = check(driver_.module_load(&module, kCopyTilesPtx), "loading the copy kernels");
  const auto find = [&](CuFunction& kernel, const char* name) {
    if (error.code != Code::kOk) return;
    error = check(driver_.module_function(&kernel, module, name), name);
  };
  auto& to_host = kernels_[lane(Way::kToHost)];
  auto& to_device = kernels_[lane(Way::kToDevice)];
  find(to_host[0], "tiles_to_host");
  find(to_host[1], "tiles_to_host_summed");
  find(to_device[0], "tiles_to_device");
  find(to_device[1], "tiles_to_device_summed");
  find(sum_kernel_, "tiles_sums");
  return error;
}

Error Gpu::make_streams() {
  int least = 0;
  int greatest = 0;
  auto error = check(driver_.stream_priorities(&least, &greatest), "asking for priorities");
  for (auto& made : lanes_) {
    for (CuStream* stream : {&made.copies[0], &made.copies[1], &made.ends}) {
      if (error.code != Code::kOk) return error;
      // Before the model's kernels: a copy takes few multiprocessors, and others wait for it.
      error = check(driver_.stream_create(stream, kStreamNonBlocking, greatest), "making a stream");
    }
  }
  return error;
}

Error Gpu::make_event(CuEvent& event) const {
  return check(driver_.event_create(&event, kEventDisableTiming), "making an event");
}

void Gpu::destroy_event(CuEvent event) const noexcept {
  if (event == nullptr) return;
  const CurrentContext current(*this);
  driver_.event_destroy(event);
}

Error Gpu::check(CuStatus status, const char* what) const {
  if (status == kCuSuccess) return {Code::kOk, {}};
  return {Code::kSetup, "CUDA device " + std::to_string(ordinal_) + ": " + what + " failed with " +
                            driver_.describe(status)};
}

Error Gpu::check_memory(std::span<const std::uint64_t> addresses, std::uint64_t bytes) const {
  if (addresses.empty()) return {Code::kOk, {}};
  const CurrentContext current(*this);
  const auto [first, last] = std::ranges::minmax(addresses);
  const auto whole = allocation_of(first);  // mostly all are of one
  if (whole && whole.value().holds(first, bytes) && whole.value().holds(last, bytes)) {
    return {Code::kOk, {}};
  }
  std::vector<Allocation> seen;
  for (const std::uint64_t address : addresses) {
    const bool is_known = std::any_of(seen.rbegin(), seen.rend(), [&](const Allocation& range) {
      return range.holds(address, bytes);
    });
    if (is_known) continue;
    const auto refuse = [&](const std::string& why) {
      return Error{Code::kInvalid, "block memory at " + hex(address) + " (" +
                                       std::to_string(bytes) + " bytes) " + why};
    };
    const auto range = allocation_of(address);
    if (!range)
      return range.code() == Code::kInvalid ? refuse(range.error().message) : range.error();
    if (!range.value().holds(address, bytes)) {
      return refuse("goes past the end of its allocation, " +
                    std::to_string(range.value().end - range.value().begin) + " bytes from " +
                    hex(range.value().begin));
    }
    seen.push_back(range.value());
  }
  return {Code::kOk, {}};
}

// kInvalid: why it is not one of this device's, to be said behind the address.
Result<Gpu::Allocation> Gpu::allocation_of(std::uint64_t address) const {
  CuStatus failure = kCuSuccess;  // of CUDA rather than of the address
  const auto ask = [&](int attribute, void* value) {
    const CuStatus status = driver_.pointer_attribute(value, attribute, address);
    if (status != kCuSuccess && status != kCuInvalidValue) failure = status;
    return status == kCuSuccess;
  };
  unsigned type = 0;
  int ordinal = ordinal_;
  CuContext owner = nullptr;
  Allocation range;
  std::size_t size = 0;
  const bool is_devices = ask(kPointerMemoryType, &type) && type == kMemoryTypeDevice;
  ask(kPointerOrdinal, &ordinal);
  ask(kPointerContext, static_cast<void*>(&owner));
  const bool has_range = ask(kPointerRangeStart, &range.begin) && ask(kPointerRangeBytes, &size);
  range.end = range.begin + size;
  if (failure != kCuSuccess) return check(failure, kAsking);
  const auto refuse = [](std::string why) { return Error{Code::kInvalid, std::move(why)}; };
  if (!is_devices) {
    return refuse("is not memory of a CUDA device: was it freed, or is it the host's?");
  }
  if (ordinal != ordinal_) {
    return refuse("is on CUDA device " + std::to_string(ordinal) + ", not " +
                  std::to_string(ordinal_));
  }
  if (owner != nullptr && owner != context_) {
    return refuse("was allocated in another context than the device's primary one");
  }
  if (!has_range) return refuse("lies in no allocation");
  return range;
}

Result<PinnedMemory> Gpu::pinned(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(std::max(bytes, kPinnedBytesMin));
  {
    const MutexLock lock(mutex_);
    auto& idle = idle_[size];
    if (!idle.empty()) {
      std::byte* const data = idle.back();
      idle.pop_back();
      return PinnedMemory(*this, data, size);
    }
  }
  const CurrentContext current(*this);
  void* data = nullptr;
  auto error = check(driver_.host_alloc(&data, size, kHostPortable), "allocating pinned memory");
  if (error.code != Code::kOk) return error;
  return PinnedMemory(*this, static_cast<std::byte*>(data), size);
}

void Gpu::give_back(std::byte* data, std::size_t bytes) noexcept {
  const MutexLock lock(mutex_);
  idle_[bytes].push_back(data);
}

Result<CuStream> Gpu::watcher(CuStream caller) {
  const MutexLock lock(mutex_);
  const auto found = watchers_.find(caller);
  if (found != watchers_.end()) return found->second;
  if (watcher_streams_.size() < kWatchersMax) {
    CuStream stream = nullptr;
    auto error = check(driver_.stream_create(&stream, kStreamNonBlocking, 0), "making a stream");
    if (error.code != Code::kOk) return error;
    watcher_streams_.push_back(stream);
    watchers_[caller] = stream;
    return stream;
  }
  // Not remembered: callers' streams come and go.
  return watcher_streams_[std::hash<CuStream>{}(caller) / 64 % watcher_streams_.size()];
}

}  // namespace infinistore
