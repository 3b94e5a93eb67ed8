#include "core/transport/rdma/exposed_work.h"

#include <algorithm>

namespace infinistore {

void ExposedCursor::skip_item() noexcept {
  if (at_end()) return;
  address_ += exposure_.items[item_].segments - segment_;
  ++item_;
  segment_ = 0;
  offset_ = 0;
}

ExposedCursor::Rest ExposedCursor::rest() const noexcept {
  const std::uint64_t segment = exposure_.addresses[address_];
  const std::uint64_t bytes = exposure_.items[item_].segment_bytes;
  const auto& windows = exposure_.windows;
  auto window =
      std::upper_bound(windows.begin(), windows.end(), segment,
                       [](std::uint64_t address, const Window& one) { return address < one.base; });
  if (window == windows.begin()) return {};
  --window;
  const std::uint64_t in_window = segment - window->base;
  if (in_window > window->bytes || bytes > window->bytes - in_window) return {};
  return {.address = segment + offset_, .bytes = bytes - offset_, .key = window->keys[0]};
}

void ExposedCursor::move(std::uint64_t bytes) noexcept {
  offset_ += bytes;
  if (offset_ < exposure_.items[item_].segment_bytes) return;
  offset_ = 0;
  ++address_;
  if (++segment_ < exposure_.items[item_].segments) return;
  segment_ = 0;
  ++item_;
}

Result<bool> add_item(const Extents& extents, ExposedCursor& at, PoolMemory& memory, Work& work) {
  if (at.at_end()) return Code::kInvalid;
  const std::size_t item = at.item();
  for (const auto& extent : extents) {
    for (std::uint64_t offset = 0; offset < extent.bytes;) {
      const auto local = memory.find(extent, offset);
      if (!local) return local.error();
      if (at.at_end() || at.item() != item) return Code::kInvalid;
      const auto remote = at.rest();
      if (remote.bytes == 0) return Code::kInvalid;
      const std::uint64_t bytes = std::min(local.value().bytes, remote.bytes);
      work.add({.local = local.value().address,
                .remote = remote.address,
                .bytes = bytes,
                .local_key = local.value().key,
                .remote_key = remote.key});
      at.move(bytes);
      offset += bytes;
    }
  }
  if (!at.at_end() && at.item() == item) return Code::kInvalid;  // it exposes more than there is
  return true;
}

}  // namespace infinistore
