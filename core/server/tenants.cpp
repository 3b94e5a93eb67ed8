#include "core/server/tenants.h"

namespace infinistore {

bool equals_secret(std::string_view shown, std::string_view secret) noexcept {
  unsigned difference = shown.size() == secret.size() ? 0 : 1;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const char against = secret.empty() ? '\0' : secret[i % secret.size()];
    difference |= static_cast<unsigned>(static_cast<unsigned char>(shown[i] ^ against));
  }
  return difference == 0;
}

bool equals_secret(const Nonce& shown, const Nonce& secret) noexcept {
  return equals_secret(text_of(shown), text_of(secret));
}

std::optional<Caller> identify(const ServerOptions& options, std::string_view token) noexcept {
  std::optional<Caller> found;
  const bool is_open = options.tenants.empty() && options.read_token.empty();
  if (options.token.empty() ? is_open : equals_secret(token, options.token)) found = Caller{};
  if (!options.read_token.empty() && equals_secret(token, options.read_token)) {
    found = Caller{.reads_only = true};
  }
  for (const auto& tenant : options.tenants) {
    if (equals_secret(token, tenant.token)) found = Caller{.tenant = &tenant};
  }
  return found;
}

std::string space_of(const Caller& caller, std::string_view asked) {
  if (caller.tenant == nullptr) return std::string(asked);
  return caller.tenant->name + "/" + std::string(asked);
}

}  // namespace infinistore
