#pragma once
// SegmentCursor: a place in the segments of a transfer's items; never rests at a segment's end.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/transport/link.h"

namespace infinistore {

class SegmentCursor {
 public:
  explicit SegmentCursor(const std::vector<Segments>& items, std::size_t first = 0) noexcept
      : items_(&items), item_(first) {
    settle();
  }

  bool at_end() const noexcept { return item_ == items_->size(); }
  std::size_t item() const noexcept { return item_; }
  MutableBytes rest() const noexcept { return (*items_)[item_].segment(segment_).subspan(offset_); }
  bool is_last_of_item(std::size_t bytes) const noexcept {
    return segment_ + 1 == (*items_)[item_].addresses.size() && bytes == rest().size();
  }
  // The segment after this one; empty: this is the last of all.
  Bytes ahead() const noexcept {
    const auto& item = (*items_)[item_];
    if (segment_ + 1 < item.addresses.size()) return item.segment(segment_ + 1);
    const bool has_more = item_ + 1 < items_->size() && !(*items_)[item_ + 1].addresses.empty();
    return has_more ? (*items_)[item_ + 1].segment(0) : MutableBytes{};
  }
  void move(std::size_t bytes) noexcept {
    offset_ += bytes;
    settle();
  }

 private:
  void settle() noexcept {
    while (item_ < items_->size()) {
      const auto& item = (*items_)[item_];
      if (segment_ == item.addresses.size()) {
        ++item_;
        segment_ = 0;
      } else if (offset_ == item.segment_bytes) {
        ++segment_;
        offset_ = 0;
      } else {
        return;
      }
    }
  }

  const std::vector<Segments>* items_;
  std::size_t item_;
  std::size_t segment_ = 0;
  std::uint64_t offset_ = 0;
};

}  // namespace infinistore
