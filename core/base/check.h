#pragma once
// KV_CHECK: our own invariants, on in release.  A peer's bad bytes are a failure, never a check.

namespace infinistore {

[[noreturn]] void check_failed(const char* condition, const char* file, int line) noexcept;

}  // namespace infinistore

#define KV_CHECK(condition) \
  ((condition) ? void(0) : ::infinistore::check_failed(#condition, __FILE__, __LINE__))
