#include "core/server/wait_table.h"

#include <algorithm>

namespace infinistore {
namespace {

std::string full_key(NamespaceId space, std::string_view key) {
  std::string full(reinterpret_cast<const char*>(&space), sizeof space);
  full += key;
  return full;
}

}  // namespace

void WaitTable::add(NamespaceId space, std::string_view key, const Waiter& waiter) {
  const MutexLock lock(mutex_);
  waiters_[full_key(space, key)].push_back(waiter);
  ++count_;
}

void WaitTable::remove(NamespaceId space, std::string_view key, const Waiter& waiter) {
  const MutexLock lock(mutex_);
  const auto found = waiters_.find(full_key(space, key));
  if (found == waiters_.end()) return;
  count_ -= std::erase(found->second, waiter);
  if (found->second.empty()) waiters_.erase(found);
}

std::vector<Waiter> WaitTable::take(NamespaceId space, std::string_view key) {
  if (count_.load() == 0) return {};
  const MutexLock lock(mutex_);
  const auto found = waiters_.find(full_key(space, key));
  if (found == waiters_.end()) return {};
  auto taken = std::move(found->second);
  waiters_.erase(found);
  count_ -= taken.size();
  return taken;
}

}  // namespace infinistore
