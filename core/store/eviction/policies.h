#pragma once
// The table of eviction policies: their names and makers.

#include <memory>
#include <span>
#include <string_view>

#include "core/store/eviction/policy.h"
#include "core/store/eviction/reuse_tuning.h"

namespace infinistore {

std::span<const std::string_view> eviction_policy_names() noexcept;

// nullptr if no policy has that name.
std::unique_ptr<EvictionScheme> make_eviction_scheme(std::string_view name,
                                                     const ReuseTuning& reuse = {});

std::unique_ptr<EvictionScheme> make_lru();
std::unique_ptr<EvictionScheme> make_reuse(const ReuseTuning& tuning);

}  // namespace infinistore
