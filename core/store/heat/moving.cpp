#include "core/store/heat/moving.h"

#include <utility>

namespace infinistore {

std::uint64_t Moving::begin(std::string_view space, std::span<const std::string_view> keys) {
  const auto number = store_.intern(space);
  Held held;
  held.reserve(keys.size());
  for (const auto key : keys) {
    held.push_back(number ? store_.find_quietly(*number, key) : std::nullopt);
  }
  const MutexLock lock(mutex_);
  if (moves_.size() >= kMovesMax) return 0;
  moves_.emplace(++last_id_, std::move(held));
  return last_id_;
}

std::vector<bool> Moving::end(std::uint64_t id) {
  Held held;
  {
    const MutexLock lock(mutex_);
    const auto found = moves_.find(id);
    if (found == moves_.end()) return {};
    held = std::move(found->second);
    moves_.erase(found);
  }
  std::vector<bool> same;
  same.reserve(held.size());
  for (const auto& lease : held) same.push_back(lease && !lease->is_detached());
  return same;
}

}  // namespace infinistore
