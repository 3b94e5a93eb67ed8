#pragma once
// Quotas: how much of the pool the namespaces of one owner may hold, how much they do, and how much
// has left for it.
//
// A namespace is an owner's if its name begins with the owner's and '/'.  Thread-safe; asked under
// a shard's lock, so it has none: what is counted is atomic, who owns what is written once.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/store/entry.h"

namespace infinistore {

struct QuotaOptions {
  std::string owner;
  std::uint64_t bytes_max = 0;  // 0: no bound, but counted
};

// What an owner's namespaces hold against its quota, and what has been evicted for it.
struct QuotaUse {
  std::uint64_t bytes = 0;
  std::uint64_t evictions = 0;
  std::uint64_t evicted_bytes = 0;
};

// A quota: its place among the options.
using QuotaId = std::uint32_t;
inline constexpr QuotaId kNoQuota = UINT32_MAX;

class Quotas {
 public:
  explicit Quotas(std::span<const QuotaOptions> options);

  // Before a namespace is used.  False: its owner has as many as it may (kNamespacesPerOwnerMax).
  bool admit(NamespaceId space, std::string_view name) noexcept;

  // False: the owner would hold more than its quota.
  bool take(NamespaceId space, std::uint64_t bytes) noexcept;
  void give(NamespaceId space, std::uint64_t bytes) noexcept;

  std::size_t quota_count() const noexcept { return accounts_.size(); }
  // Which one bounds the namespace; kNoQuota: none.
  QuotaId quota_of(NamespaceId space) const noexcept;
  std::uint64_t bytes_max(QuotaId quota) const noexcept { return accounts_[quota].bytes_max; }
  // What would have to leave for so much more to fit.
  std::uint64_t excess_bytes(QuotaId quota, std::uint64_t bytes) const noexcept;
  void count_evicted(QuotaId quota, std::uint64_t bytes) noexcept;

  QuotaUse use_of(std::string_view owner) const noexcept;

 private:
  struct Account {
    std::string owner;
    std::uint64_t bytes_max = 0;
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> evictions{0};
    std::atomic<std::uint64_t> evicted_bytes{0};
    std::uint32_t namespaces = 0;  // under the lock of who admits
  };
  Account* account_of(NamespaceId space) noexcept;

  std::vector<Account> accounts_;
  // By namespace: 1 + the index of its account, 0: none.  Empty if there are no accounts.
  std::vector<std::atomic<std::uint32_t>> owners_;
};

}  // namespace infinistore
