#pragma once
// WaitTable: which requests wait for a key that somebody is writing.
//
// Thread-safe.  A writer's end costs one atomic load while nobody waits.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/store/store.h"

namespace infinistore {

using SessionId = std::uint64_t;

struct Waiter {
  std::uint32_t worker_index = 0;
  std::uint32_t item_index = 0;  // which key of the request
  SessionId session_id = 0;
  std::uint64_t request_id = 0;

  bool operator==(const Waiter&) const = default;
};

class WaitTable {
 public:
  // The caller looks at the store again afterwards: what ended before is not told.
  void add(NamespaceId space, std::string_view key, const Waiter& waiter);
  void remove(NamespaceId space, std::string_view key, const Waiter& waiter);
  // Those that waited for this key; they wait no more.
  std::vector<Waiter> take(NamespaceId space, std::string_view key);

  std::size_t count() const noexcept { return count_.load(); }

 private:
  Mutex mutex_;
  std::unordered_map<std::string, std::vector<Waiter>> waiters_ GUARDED_BY(mutex_);
  // Sequentially consistent: a waiter counts itself, then looks at the store; a writer seals, then
  // looks at the count.  One of them sees the other.
  std::atomic<std::size_t> count_{0};
};

}  // namespace infinistore
