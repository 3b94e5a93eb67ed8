#pragma once
// HashTable: where the elements of a vector stand, by their hash.  The vector is its owner's; each
// element has its `hash`, and in `next` the index of the next one in its bucket.
//
//   HashTable<Slot> table(1024);  table.link(slots, 7);  table.find(slots, slots[7].hash) == 7
//
// Buckets go by the low bits of a hash.  Not thread-safe.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace infinistore {

template <class Element>
class HashTable {
 public:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};  // no element's index

  explicit HashTable(std::size_t buckets_min) : firsts_(std::bit_ceil(buckets_min), kNone) {}

  std::uint32_t find(const std::vector<Element>& elements, std::uint64_t hash) const noexcept {
    std::uint32_t at = first(hash);
    while (at != kNone && elements[at].hash != hash) at = elements[at].next;
    return at;
  }
  void link(std::vector<Element>& elements, std::uint32_t index) noexcept {
    elements[index].next = std::exchange(firsts_[bucket_of(elements[index].hash)], index);
  }
  // Of one that is linked, with the hash that it had then.
  void unlink(std::vector<Element>& elements, std::uint32_t index) noexcept {
    std::uint32_t* at = &firsts_[bucket_of(elements[index].hash)];
    while (*at != index) at = &elements[*at].next;
    *at = elements[index].next;
  }
  void clear() noexcept { std::ranges::fill(firsts_, kNone); }

  // Asks the memory for what first() will look at.  That names the element which find() would look
  // at first, to be asked for as well; kNone: the bucket is empty.
  void expect(std::uint64_t hash) const noexcept { __builtin_prefetch(&firsts_[bucket_of(hash)]); }
  std::uint32_t first(std::uint64_t hash) const noexcept { return firsts_[bucket_of(hash)]; }

 private:
  std::size_t bucket_of(std::uint64_t hash) const noexcept { return hash & (firsts_.size() - 1); }

  std::vector<std::uint32_t> firsts_;  // the first element of each bucket; a power of two
};

}  // namespace infinistore
