#pragma once
// Moving: which values are on their way to another node, and whether they were there all the time.
//
//   id = moving.begin(space, keys)   read them, put them there as copies    moving.end(id)
//
// A copy that is whole but not sealed yet, of a key whose value was there all the time, is of no
// value that was replaced before the copy began there.  The values are held meanwhile, quietly:
// what leaves keeps its bytes until the end.  Thread-safe; its lock is taken with nothing else
// held. Must not outlive its Store.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/store/store.h"

namespace infinistore {

class Moving {
 public:
  static constexpr std::size_t kMovesMax = 64;  // at once; a node moves one thing after the other

  explicit Moving(Store& store) noexcept : store_(store) {}

  // 0: there are kMovesMax.
  std::uint64_t begin(std::string_view space, std::span<const std::string_view> keys)
      EXCLUDES(mutex_);
  // For each key whether it has had one value since; empty if no move has that number.
  std::vector<bool> end(std::uint64_t id) EXCLUDES(mutex_);

 private:
  using Held = std::vector<std::optional<Lease>>;

  Store& store_;
  Mutex mutex_;
  std::uint64_t last_id_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::uint64_t, Held> moves_ GUARDED_BY(mutex_);
};

}  // namespace infinistore
