#pragma once
// Buddy: which pages of 4 KiB are free, in buddies of up to 2 MiB.  Knows numbers, not memory.
//
// Not thread-safe.  A slab is 512 pages: a tree of 1,023 bits says which of its pages are free, and
// at what size.  For each size the slabs that have such a page are linked, so that taking and
// giving touch one slab and are independent of the pool's size.  208 bytes a slab: 0.01 % of the
// memory. Method: Knowlton, "A fast storage allocator", CACM 8(10), 1965.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace infinistore {

// Adjoining pages of 4 KiB.
struct PageRun {
  std::uint64_t first = 0;
  std::uint64_t count = 0;

  bool operator==(const PageRun&) const = default;
};

class Buddy {
 public:
  static constexpr unsigned kOrderMax = 9;  // 2^9 pages of 4 KiB: 2 MiB
  static constexpr std::uint64_t kSlabPages = std::uint64_t{1} << kOrderMax;

  // All pages are taken at first.
  explicit Buddy(std::uint64_t page_count);

  // Appends runs of `count` pages in all to `runs`, as few and as long as there are; takes nothing
  // and returns false if fewer are free.
  bool take(std::uint64_t count, std::vector<PageRun>& runs);
  void give(PageRun run) noexcept;

  std::uint64_t free_count() const noexcept { return free_count_; }
  bool is_free(std::uint64_t page) const noexcept;

  // Links, bits and counts agree, and no two free buddies are unjoined.  Empty if all is well.
  std::string check_integrity() const;

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  struct Link {
    std::uint32_t prev = kNone, next = kNone;
  };
  struct Slab {
    std::array<std::uint64_t, 16> bits{};  // order 0's 512 bits first, then order 1's 256, ...
    std::array<Link, kOrderMax + 1> links{};
  };
  struct Page {
    std::uint32_t slab = 0;
    unsigned order = 0;
    unsigned index = 0;  // in the slab, in pages of this order
  };

  static Page parent_of(const Page& page) noexcept {
    return {.slab = page.slab, .order = page.order + 1, .index = page.index / 2};
  }
  bool test(const Page& page) const noexcept;
  bool has_free_buddy(const Page& page) const noexcept;
  bool has_free_above(Page page) const noexcept;
  bool has_any(std::uint32_t slab, unsigned order) const noexcept;
  unsigned first_index(std::uint32_t slab, unsigned order) const noexcept;
  void mark(const Page& page) noexcept;  // free at this order
  void unmark(const Page& page) noexcept;
  void give_page(Page page) noexcept;
  PageRun take_page(unsigned order, std::uint64_t count) noexcept;
  std::string check_links(unsigned order) const;
  // Adds its free pages of this order to `free`.
  std::string check_slab(std::uint32_t slab, unsigned order, std::uint64_t& free) const;
  unsigned order_at_least(unsigned order) const noexcept;  // of a free page; kOrderMax + 1: none
  unsigned order_below(unsigned order) const noexcept;     // largest of a free page, < order

  std::vector<Slab> slabs_;
  std::array<std::uint32_t, kOrderMax + 1> fronts_;
  std::uint64_t free_count_ = 0;
};

}  // namespace infinistore
