#pragma once
// SmallHeap: memory for the bookkeeping of millions of keys, in huge pages.
//
// Objects of a few sizes live in chunks of 2 MiB that the kernel is asked to back by one page each:
// lookups that go to random ones then miss in the TLB a tenth as often, which makes them 1.3 to 2
// times as fast at a million keys in a virtual machine (bench_store).  Where there are no huge
// pages it is a plain heap.  Memory is kept for reuse, never given back to the system.
//
// Thread-safe.  With address sanitizer it is the system's heap, which sees misuse.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>

namespace infinistore {

// Of at most kSmallBytesMax, aligned to 16.  A thread's own free ones first: no lock.
inline constexpr std::size_t kSmallBytesMax = 512;
void* small_alloc(std::size_t bytes);  // throws std::bad_alloc
void small_free(void* memory, std::size_t bytes) noexcept;

// Of any size, aligned to 64: for tables.
void* table_alloc(std::size_t bytes);  // throws std::bad_alloc
void table_free(void* memory, std::size_t bytes) noexcept;

// For std::vector.
template <class T>
struct TableAllocator {
  using value_type = T;

  TableAllocator() = default;
  template <class U>
  TableAllocator(const TableAllocator<U>&) noexcept {}  // NOLINT: a conversion by the standard

  T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(table_alloc(count * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t count) noexcept { table_free(memory, count * sizeof(T)); }
  friend bool operator==(TableAllocator, TableAllocator) noexcept { return true; }
};

}  // namespace infinistore
