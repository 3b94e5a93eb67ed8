#include "core/base/result.h"

#include <array>

namespace infinistore {

std::string_view code_name(Code code) noexcept {
  constexpr std::array<std::string_view, kCodeCount> kNames = {
      "ok",         "exists",    "missing",       "size_mismatch", "too_large",     "out_of_memory",
      "overloaded", "invalid",   "unauthorized",  "protocol",      "version",       "disconnected",
      "timeout",    "cancelled", "corrupt",       "aborted",       "lease_expired", "closed",
      "setup",      "draining",  "quota_exceeded"};
  const auto index = static_cast<std::size_t>(code);
  return index < kNames.size() ? kNames[index] : "unknown";
}

}  // namespace infinistore
