#include "core/memory/small_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <vector>

#include "core/base/check.h"
#include "core/base/mutex.h"

namespace infinistore {
namespace {

#if defined(__SANITIZE_ADDRESS__)  // gcc's word
constexpr bool kIsPlain = true;    // the system's heap
#else
constexpr bool kIsPlain = false;
#endif

constexpr std::size_t kChunkBytes = std::size_t{2} << 20;
constexpr std::size_t kRunBytesMin = std::size_t{32} << 10;
constexpr std::size_t kStepBytes = 16;
constexpr std::size_t kClassCount = kSmallBytesMax / kStepBytes + 1;
constexpr std::size_t kOwnMax = 256;  // free objects of a class that a thread keeps

struct FreeObject {
  FreeObject* next;
};

// Free objects of one size, last in first out.
struct FreeList {
  FreeObject* first = nullptr;
  std::size_t count = 0;

  void push(void* memory) noexcept {
    first = std::construct_at(static_cast<FreeObject*>(memory), FreeObject{first});
    ++count;
  }
  void* pop() noexcept {
    FreeObject* const object = first;
    first = object->next;
    --count;
    return object;
  }
  void move_to(FreeList& other, std::size_t how_many) noexcept {
    while (how_many-- > 0 && first != nullptr) other.push(pop());
  }
};

std::size_t class_of(std::size_t bytes) noexcept { return (bytes + kStepBytes - 1) / kStepBytes; }

// Whole chunks, aligned to their size.
void* map_chunks(std::size_t bytes) {
  void* const mapped = ::mmap(nullptr, bytes + kChunkBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  const auto base = reinterpret_cast<std::uintptr_t>(mapped);
  const auto aligned = (base + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
  if (aligned > base) ::munmap(mapped, aligned - base);
  const auto end = base + bytes + kChunkBytes;
  if (end > aligned + bytes) {
    ::munmap(reinterpret_cast<void*>(aligned + bytes), end - aligned - bytes);
  }
  auto* const chunks = reinterpret_cast<void*>(aligned);
  ::madvise(chunks, bytes, MADV_HUGEPAGE);  // a wish
  return chunks;
}

// Runs: powers of two of bytes, cut from chunks.  What is not on a thread's own lists.
class Central {
 public:
  void* take_run(std::size_t bytes) {
    const MutexLock lock(mutex_);
    return take_run_locked(bytes);
  }
  void give_run(void* memory, std::size_t bytes) noexcept {
    const MutexLock lock(mutex_);
    runs_[order_of(bytes)].push(memory);
  }
  // Some objects of the class, at least one.
  void refill(std::size_t object_class, FreeList& own) {
    const MutexLock lock(mutex_);
    FreeList& spare = objects_[object_class];
    if (spare.first == nullptr) {
      const std::size_t bytes = object_class * kStepBytes;
      auto* const run = static_cast<std::byte*>(take_run_locked(kRunBytesMin));
      // From the end, so that they are taken in the order of their addresses.
      for (std::size_t i = kRunBytesMin / bytes; i-- > 0;) spare.push(run + i * bytes);
    }
    spare.move_to(own, kOwnMax / 2);
  }
  void take_back(std::size_t object_class, FreeList& own, std::size_t how_many) noexcept {
    const MutexLock lock(mutex_);
    own.move_to(objects_[object_class], how_many);
  }

 private:
  static std::size_t order_of(std::size_t bytes) noexcept {
    return static_cast<std::size_t>(std::countr_zero(bytes));
  }
  void* take_run_locked(std::size_t bytes) REQUIRES(mutex_) {
    FreeList& free = runs_[order_of(bytes)];
    if (free.first != nullptr) return free.pop();
    if (bytes >= kChunkBytes) return map_chunks(bytes);
    // The half of the next larger one, down from a chunk.
    auto* const pair = static_cast<std::byte*>(take_run_locked(2 * bytes));
    free.push(pair + bytes);
    return pair;
  }

  Mutex mutex_;
  std::array<FreeList, 64> runs_ GUARDED_BY(mutex_);
  std::array<FreeList, kClassCount> objects_ GUARDED_BY(mutex_);
};

// Never destroyed: objects may be freed while the process ends.
Central& central() {
  alignas(Central) static std::array<std::byte, sizeof(Central)> place;
  static auto* const the_one = std::construct_at(reinterpret_cast<Central*>(place.data()));
  return *the_one;
}

// A thread's free objects; its end gives them to all.
struct Own {
  std::array<FreeList, kClassCount> lists;

  Own() = default;
  Own(const Own&) = delete;
  Own& operator=(const Own&) = delete;
  ~Own() {
    for (std::size_t i = 0; i < lists.size(); ++i) {
      central().take_back(i, lists[i], lists[i].count);
    }
  }
};

FreeList& own_list(std::size_t object_class) {
  thread_local Own own;
  return own.lists[object_class];
}

std::size_t run_bytes(std::size_t bytes) noexcept {
  return std::max(kRunBytesMin, std::bit_ceil(bytes));
}

}  // namespace

void* small_alloc(std::size_t bytes) {
  KV_CHECK(bytes > 0 && bytes <= kSmallBytesMax);
  if constexpr (kIsPlain) return ::operator new(bytes);
  FreeList& own = own_list(class_of(bytes));
  if (own.first == nullptr) central().refill(class_of(bytes), own);
  return own.pop();
}

void small_free(void* memory, std::size_t bytes) noexcept {
  if constexpr (kIsPlain) {
    ::operator delete(memory);
    return;
  }
  FreeList& own = own_list(class_of(bytes));
  own.push(memory);
  if (own.count >= kOwnMax) central().take_back(class_of(bytes), own, kOwnMax / 2);
}

// Small ones are many in tests, and no matter.
void* table_alloc(std::size_t bytes) {
  if (kIsPlain || bytes < kRunBytesMin) return ::operator new(bytes, std::align_val_t{64});
  return central().take_run(run_bytes(bytes));
}

void table_free(void* memory, std::size_t bytes) noexcept {
  if (kIsPlain || bytes < kRunBytesMin) {
    ::operator delete(memory, std::align_val_t{64});
  } else {
    central().give_run(memory, run_bytes(bytes));
  }
}

}  // namespace infinistore
