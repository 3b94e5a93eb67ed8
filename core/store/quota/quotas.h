#pragma once
// Quotas: how much of the pool the namespaces of one owner may hold, and how much they do.
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

class Quotas {
 public:
  explicit Quotas(std::span<const QuotaOptions> options);

  // Before a namespace is used.  False: its owner has as many as it may (kNamespacesPerOwnerMax).
  bool admit(NamespaceId space, std::string_view name) noexcept;

  // False: the owner would hold more than its quota.
  bool take(NamespaceId space, std::uint64_t bytes) noexcept;
  void give(NamespaceId space, std::uint64_t bytes) noexcept;

  std::uint64_t used_bytes(std::string_view owner) const noexcept;

 private:
  struct Account {
    std::string owner;
    std::uint64_t bytes_max = 0;
    std::atomic<std::uint64_t> bytes{0};
    std::uint32_t namespaces = 0;  // under the lock of who admits
  };
  Account* account_of(NamespaceId space) noexcept;

  std::vector<Account> accounts_;
  // By namespace: 1 + the index of its account, 0: none.  Empty if there are no accounts.
  std::vector<std::atomic<std::uint32_t>> owners_;
};

}  // namespace infinistore
