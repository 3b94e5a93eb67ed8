#include "core/store/quota/quotas.h"

#include "core/base/limits.h"

namespace infinistore {

Quotas::Quotas(std::span<const QuotaOptions> options)
    : accounts_(options.size()), owners_(options.empty() ? 0 : kNamespacesMax + 1) {
  for (std::size_t i = 0; i < options.size(); ++i) {
    accounts_[i].owner = options[i].owner;
    accounts_[i].bytes_max = options[i].bytes_max;
  }
}

bool Quotas::admit(NamespaceId space, std::string_view name) noexcept {
  for (std::uint32_t i = 0; i < accounts_.size(); ++i) {
    auto& account = accounts_[i];
    if (!name.starts_with(account.owner) || name.substr(account.owner.size(), 1) != "/") continue;
    if (account.namespaces >= kNamespacesPerOwnerMax) return false;
    ++account.namespaces;
    owners_[space].store(i + 1, std::memory_order_relaxed);
  }
  return true;
}

Quotas::Account* Quotas::account_of(NamespaceId space) noexcept {
  if (space >= owners_.size()) return nullptr;
  const auto owner = owners_[space].load(std::memory_order_relaxed);
  return owner == 0 ? nullptr : &accounts_[owner - 1];
}

bool Quotas::take(NamespaceId space, std::uint64_t bytes) noexcept {
  auto* account = account_of(space);
  if (account == nullptr) return true;
  const std::uint64_t before = account->bytes.fetch_add(bytes, std::memory_order_relaxed);
  if (account->bytes_max == 0 || before + bytes <= account->bytes_max) return true;
  account->bytes.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

void Quotas::give(NamespaceId space, std::uint64_t bytes) noexcept {
  if (auto* account = account_of(space)) {
    account->bytes.fetch_sub(bytes, std::memory_order_relaxed);
  }
}

QuotaId Quotas::quota_of(NamespaceId space) const noexcept {
  if (space >= owners_.size()) return kNoQuota;
  const auto owner = owners_[space].load(std::memory_order_relaxed);
  return owner == 0 || accounts_[owner - 1].bytes_max == 0 ? kNoQuota : owner - 1;
}

std::uint64_t Quotas::excess_bytes(QuotaId quota, std::uint64_t bytes) const noexcept {
  const auto& account = accounts_[quota];
  const std::uint64_t wanted = account.bytes.load(std::memory_order_relaxed) + bytes;
  return wanted > account.bytes_max ? wanted - account.bytes_max : 0;
}

void Quotas::count_evicted(QuotaId quota, std::uint64_t bytes) noexcept {
  accounts_[quota].evictions.fetch_add(1, std::memory_order_relaxed);
  accounts_[quota].evicted_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

QuotaUse Quotas::use_of(std::string_view owner) const noexcept {
  for (const auto& account : accounts_) {
    if (account.owner != owner) continue;
    return {.bytes = account.bytes.load(std::memory_order_relaxed),
            .evictions = account.evictions.load(std::memory_order_relaxed),
            .evicted_bytes = account.evicted_bytes.load(std::memory_order_relaxed)};
  }
  return {};
}

}  // namespace infinistore
