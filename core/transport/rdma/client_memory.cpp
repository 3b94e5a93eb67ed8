#include "core/transport/rdma/client_memory.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace infinistore {
namespace {

constexpr std::size_t kKeptMax = 4096;
constexpr std::uint64_t kPageBytes = 4096;

struct Range {
  std::uint64_t begin;
  std::uint64_t end;
};

// Segments that meet become one and, if `may_bridge`, those on the same or the next page: no page
// is touched that none of them is on.
std::vector<Range> merge(std::vector<Range> ranges, bool may_bridge) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& one, const Range& other) { return one.begin < other.begin; });
  std::vector<Range> merged;
  for (const auto& range : ranges) {
    const std::uint64_t end = merged.empty() ? 0 : merged.back().end;
    const std::uint64_t reach = may_bridge ? (end + kPageBytes - 1) / kPageBytes * kPageBytes : end;
    if (!merged.empty() && range.begin <= reach) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

MutableBytes memory_at(std::uint64_t base, std::uint64_t bytes) noexcept {
  return {reinterpret_cast<std::byte*>(base), bytes};
}

int access_for(bool is_writable) noexcept {
  return is_writable ? kIbvLocalWrite | kIbvRemoteWrite : kIbvRemoteRead;
}

// For one request alone.
Error register_own(std::span<const Range> ranges, const RdmaDevice& device, bool is_writable,
                   std::vector<OwnedMr>& own, Exposure& exposure) {
  for (const auto& range : ranges) {
    auto mr = device.register_memory(memory_at(range.begin, range.end - range.begin),
                                     access_for(is_writable));
    if (!mr) return mr.error();
    exposure.windows.push_back(
        {.base = range.begin, .bytes = range.end - range.begin, .keys = {mr.value()->remote_key}});
    own.push_back(std::move(*mr));
  }
  return {Code::kOk, {}};
}

}  // namespace

// What one request shows: registrations of its own, and uses of kept ones.
class ClientMemory::Showing final : public Shown {
 public:
  explicit Showing(ClientMemory& memory) noexcept : memory_(memory) {}
  ~Showing() override {
    for (const auto base : kept) memory_.let_go(base);
  }

  std::vector<OwnedMr> own;
  std::vector<std::uint64_t> kept;

 private:
  ClientMemory& memory_;
};

Error ClientMemory::keep(MutableBytes memory) {
  const auto base = reinterpret_cast<std::uintptr_t>(memory.data());
  const MutexLock lock(mutex_);
  const auto next = kept_.lower_bound(base);
  const bool meets_next = next != kept_.end() && next->first < base + memory.size();
  const bool meets_last =
      next != kept_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > base;
  if (meets_next || meets_last) {
    return {Code::kInvalid, "a part of this memory is registered already; unregister it first"};
  }
  if (memory.empty()) return {Code::kInvalid, "memory of 0 bytes cannot be registered"};
  if (kept_.size() >= kKeptMax) {
    return {Code::kInvalid, "more than " + std::to_string(kKeptMax) +
                                " pieces of memory are registered; unregister some"};
  }
  kept_[base].bytes = memory.size();
  return {Code::kOk, {}};
}

void ClientMemory::forget(const std::byte* base) {
  const MutexLock lock(mutex_);
  const auto found = kept_.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == kept_.end()) return;
  found->second.is_forgotten = true;
  if (found->second.shown == 0) kept_.erase(found);
}

void ClientMemory::let_go(std::uint64_t base) {
  const MutexLock lock(mutex_);
  const auto found = kept_.find(base);
  if (--found->second.shown == 0 && found->second.is_forgotten) kept_.erase(found);
}

void ClientMemory::clear() {
  const MutexLock lock(mutex_);
  for (auto& [base, kept] : kept_) kept.registered.clear();
}

ClientMemory::Kept* ClientMemory::find_locked(std::uint64_t address, std::uint64_t bytes,
                                              std::uint64_t& base) {
  auto found = kept_.upper_bound(address);
  if (found == kept_.begin()) return nullptr;
  --found;
  const std::uint64_t offset = address - found->first;
  if (found->second.is_forgotten || offset > found->second.bytes ||
      bytes > found->second.bytes - offset) {
    return nullptr;
  }
  base = found->first;
  return &found->second;
}

Result<IbvMr*> ClientMemory::register_kept_locked(Kept& kept, std::uint64_t base,
                                                  const RdmaDevice& device, bool is_writable) {
  const auto known = kept.registered.find(&device);
  if (is_writable && kept.is_read_only) {
    return Error{Code::kSetup, "this memory may not be written"};
  }
  if (known != kept.registered.end()) return known->second.get();
  const auto memory = memory_at(base, kept.bytes);
  auto made = device.register_memory(memory, access_for(true) | access_for(false));
  if (!made && !is_writable) {  // memory that nobody may write
    made = device.register_memory(memory, access_for(false));
    kept.is_read_only = made.ok();
  }
  if (!made) return made.error();
  auto* const mr = made->get();
  kept.registered[&device] = std::move(*made);
  return mr;
}

Result<std::unique_ptr<Shown>> ClientMemory::show(const RdmaDevice& device,
                                                  std::span<const Segments> items, bool is_writable,
                                                  Exposure& exposure) {
  auto showing = std::make_unique<Showing>(*this);
  std::vector<Range> others;
  {
    const MutexLock lock(mutex_);
    Kept* last = nullptr;  // mostly all are in one
    std::uint64_t base = 0;
    for (const auto& item : items) {
      exposure.items.push_back({.segment_bytes = item.segment_bytes,
                                .segments = static_cast<std::uint32_t>(item.addresses.size())});
      for (const auto address : item.addresses) {
        exposure.addresses.push_back(address);
        const bool is_in_last = last != nullptr && item.segment_bytes <= last->bytes &&
                                address >= base &&
                                address - base <= last->bytes - item.segment_bytes;
        if (is_in_last) continue;
        Kept* const kept = find_locked(address, item.segment_bytes, base);
        if (kept == nullptr) {
          others.push_back({address, address + item.segment_bytes});
          last = nullptr;
          continue;
        }
        last = kept;
        if (std::find(showing->kept.begin(), showing->kept.end(), base) != showing->kept.end()) {
          continue;
        }
        const auto mr = register_kept_locked(*kept, base, device, is_writable);
        if (!mr) return mr.error();
        ++kept->shown;
        showing->kept.push_back(base);
        exposure.windows.push_back(
            {.base = base, .bytes = kept->bytes, .keys = {mr.value()->remote_key}});
      }
    }
  }
  const auto merged = merge(std::move(others), exposure.windows.empty());
  if (merged.size() + exposure.windows.size() > kWindowsMax) {
    return Error{Code::kTooLarge, "too many pieces of memory in one request"};
  }
  const auto error = register_own(merged, device, is_writable, showing->own, exposure);
  if (error.code != Code::kOk) return error;
  std::sort(exposure.windows.begin(), exposure.windows.end(),
            [](const Window& one, const Window& other) { return one.base < other.base; });
  const auto meets = std::adjacent_find(
      exposure.windows.begin(), exposure.windows.end(),
      [](const Window& one, const Window& next) { return one.base + one.bytes > next.base; });
  if (meets != exposure.windows.end()) {
    return Error{Code::kTooLarge, "a segment lies in registered memory in part"};
  }
  return std::unique_ptr<Shown>(std::move(showing));
}

}  // namespace infinistore
