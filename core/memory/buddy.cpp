#include "core/memory/buddy.h"

#include <algorithm>
#include <bit>

#include "core/base/check.h"

namespace infinistore {
namespace {

constexpr unsigned order_count(unsigned order) { return 1U << (Buddy::kOrderMax - order); }

// The first bit of an order: 512 + 256 + ... before it.
constexpr unsigned order_start(unsigned order) {
  return 2 * order_count(0) - 2 * order_count(order);
}
static_assert(order_start(0) == 0 && order_start(1) == 512 && order_start(2) == 768);
static_assert(order_start(Buddy::kOrderMax) == 1022);

unsigned log2_floor(std::uint64_t x) { return static_cast<unsigned>(std::bit_width(x)) - 1; }
unsigned log2_ceil(std::uint64_t x) { return x <= 1 ? 0 : log2_floor(x - 1) + 1; }

}  // namespace

Buddy::Buddy(std::uint64_t page_count) {
  const std::uint64_t slab_count = (page_count + kSlabPages - 1) / kSlabPages;
  KV_CHECK(slab_count < kNone);
  slabs_.resize(slab_count);
  fronts_.fill(kNone);
}

bool Buddy::test(const Page& page) const noexcept {
  const unsigned bit = order_start(page.order) + page.index;
  return (slabs_[page.slab].bits[bit / 64] >> (bit % 64) & 1) != 0;
}

unsigned Buddy::first_index(std::uint32_t slab, unsigned order) const noexcept {
  const unsigned count = order_count(order);
  const unsigned start = order_start(order);
  const auto& bits = slabs_[slab].bits;
  if (count >= 64) {
    for (unsigned word = start / 64; word < (start + count) / 64; ++word) {
      if (bits[word] != 0) {
        return word * 64 + static_cast<unsigned>(std::countr_zero(bits[word])) - start;
      }
    }
    return count;
  }
  // The orders of less than 64 pages share the last word.
  const std::uint64_t mine = bits[start / 64] >> (start % 64) & ((std::uint64_t{1} << count) - 1);
  return mine == 0 ? count : static_cast<unsigned>(std::countr_zero(mine));
}

bool Buddy::has_any(std::uint32_t slab, unsigned order) const noexcept {
  return first_index(slab, order) < order_count(order);
}

bool Buddy::has_free_buddy(const Page& page) const noexcept {
  return page.order < kOrderMax &&
         test({.slab = page.slab, .order = page.order, .index = page.index ^ 1U});
}

bool Buddy::has_free_above(Page page) const noexcept {
  while (page.order < kOrderMax) {
    page = parent_of(page);
    if (test(page)) return true;
  }
  return false;
}

void Buddy::mark(const Page& page) noexcept {
  const bool was_linked = has_any(page.slab, page.order);
  const unsigned bit = order_start(page.order) + page.index;
  slabs_[page.slab].bits[bit / 64] |= std::uint64_t{1} << (bit % 64);
  if (was_linked) return;
  std::uint32_t& front = fronts_[page.order];
  slabs_[page.slab].links[page.order] = {.prev = kNone, .next = front};
  if (front != kNone) slabs_[front].links[page.order].prev = page.slab;
  front = page.slab;
}

void Buddy::unmark(const Page& page) noexcept {
  const unsigned bit = order_start(page.order) + page.index;
  slabs_[page.slab].bits[bit / 64] &= ~(std::uint64_t{1} << (bit % 64));
  if (has_any(page.slab, page.order)) return;
  const Link link = slabs_[page.slab].links[page.order];
  if (link.next != kNone) slabs_[link.next].links[page.order].prev = link.prev;
  if (link.prev != kNone) {
    slabs_[link.prev].links[page.order].next = link.next;
  } else {
    fronts_[page.order] = link.next;
  }
}

void Buddy::give_page(Page page) noexcept {
  // Whoever gives twice would otherwise hand one page to two owners.
  KV_CHECK(!test(page) && !has_free_above(page));
  free_count_ += std::uint64_t{1} << page.order;
  while (has_free_buddy(page)) {
    unmark({.slab = page.slab, .order = page.order, .index = page.index ^ 1U});
    page = parent_of(page);
  }
  mark(page);
}

void Buddy::give(PageRun run) noexcept {
  // From the end, so that the slabs of a long run stand in rising order in the lists again: the
  // next long value then gets adjoining ones.
  while (run.count > 0) {
    const std::uint64_t end = run.first + run.count;
    const std::uint64_t slab = (end - 1) / kSlabPages;
    const std::uint64_t slab_first = slab * kSlabPages;
    std::uint64_t at = std::max(run.first, slab_first) - slab_first;
    const std::uint64_t stop = end - slab_first;
    run.count -= stop - at;
    while (at < stop) {
      const unsigned aligned = at == 0 ? kOrderMax : static_cast<unsigned>(std::countr_zero(at));
      const unsigned order = std::min({aligned, log2_floor(stop - at), kOrderMax});
      give_page({.slab = static_cast<std::uint32_t>(slab),
                 .order = order,
                 .index = static_cast<unsigned>(at >> order)});
      at += std::uint64_t{1} << order;
    }
  }
}

unsigned Buddy::order_at_least(unsigned order) const noexcept {
  while (order <= kOrderMax && fronts_[order] == kNone) ++order;
  return order;
}

unsigned Buddy::order_below(unsigned order) const noexcept {
  do {
    KV_CHECK(order > 0);  // the caller knows that enough is free
    --order;
  } while (fronts_[order] == kNone);
  return order;
}

// Takes the first `count` pages of a free page of this order and leaves the rest free.
PageRun Buddy::take_page(unsigned order, std::uint64_t count) noexcept {
  const std::uint32_t slab = fronts_[order];
  const unsigned index = first_index(slab, order);
  unmark({.slab = slab, .order = order, .index = index});
  const std::uint64_t whole = std::uint64_t{1} << order;
  free_count_ -= whole;
  const std::uint64_t first = slab * kSlabPages + (std::uint64_t{index} << order);
  if (count < whole) give({.first = first + count, .count = whole - count});
  return {.first = first, .count = count};
}

bool Buddy::take(std::uint64_t count, std::vector<PageRun>& runs) {
  if (count > free_count_) return false;
  while (count > 0) {
    const unsigned wanted = std::min(log2_ceil(count), kOrderMax);
    unsigned order = order_at_least(wanted);
    if (order > kOrderMax) order = order_below(wanted);
    const std::uint64_t part = std::min(count, std::uint64_t{1} << order);
    const PageRun run = take_page(order, part);
    if (!runs.empty() && runs.back().first + runs.back().count == run.first) {
      runs.back().count += part;
    } else {
      runs.push_back(run);
    }
    count -= part;
  }
  return true;
}

bool Buddy::is_free(std::uint64_t page) const noexcept {
  const Page at{.slab = static_cast<std::uint32_t>(page / kSlabPages),
                .order = 0,
                .index = static_cast<unsigned>(page % kSlabPages)};
  return test(at) || has_free_above(at);
}

std::string Buddy::check_integrity() const {
  std::uint64_t free = 0;
  for (unsigned order = 0; order <= kOrderMax; ++order) {
    if (auto wrong = check_links(order); !wrong.empty()) return wrong;
    for (std::uint32_t slab = 0; slab < slabs_.size(); ++slab) {
      if (auto wrong = check_slab(slab, order, free); !wrong.empty()) return wrong;
    }
  }
  return free == free_count_ ? "" : "the free pages do not add up";
}

std::string Buddy::check_slab(std::uint32_t slab, unsigned order, std::uint64_t& free) const {
  for (unsigned index = 0; index < order_count(order); ++index) {
    const Page page{.slab = slab, .order = order, .index = index};
    if (!test(page)) continue;
    free += std::uint64_t{1} << order;
    if (has_free_above(page)) return "a page is free twice";
    if (has_free_buddy(page)) return "two free buddies are not joined";
  }
  return "";
}

std::string Buddy::check_links(unsigned order) const {
  std::vector<bool> is_linked(slabs_.size());
  std::uint32_t prev = kNone;
  for (std::uint32_t slab = fronts_[order]; slab != kNone;
       prev = slab, slab = slabs_[slab].links[order].next) {
    if (is_linked[slab]) return "a slab is linked twice";
    if (slabs_[slab].links[order].prev != prev) return "a slab's links disagree";
    is_linked[slab] = true;
  }
  for (std::uint32_t slab = 0; slab < slabs_.size(); ++slab) {
    if (is_linked[slab] != has_any(slab, order)) return "a slab's links and bits disagree";
  }
  return "";
}

}  // namespace infinistore
