#include "core/store/eviction/policies.h"

#include <array>

namespace infinistore {
namespace {

constexpr std::array<std::string_view, 1> kNames = {"lru"};

}  // namespace

std::span<const std::string_view> eviction_policy_names() noexcept { return kNames; }

std::unique_ptr<EvictionPolicy> make_eviction_policy(std::string_view name) {
  if (name == "lru") return make_lru();
  return nullptr;
}

}  // namespace infinistore
