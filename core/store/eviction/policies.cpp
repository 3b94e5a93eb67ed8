#include "core/store/eviction/policies.h"

#include <array>

namespace infinistore {
namespace {

constexpr std::array<std::string_view, 2> kNames = {"reuse", "lru"};

}  // namespace

std::span<const std::string_view> eviction_policy_names() noexcept { return kNames; }

std::unique_ptr<EvictionScheme> make_eviction_scheme(std::string_view name,
                                                     const ReuseTuning& reuse) {
  if (name == "reuse") return make_reuse(reuse);
  if (name == "lru") return make_lru();
  return nullptr;
}

}  // namespace infinistore
