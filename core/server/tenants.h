#pragma once
// Tenants: who a token is of, and which namespaces that opens.

#include <optional>
#include <string>
#include <string_view>

#include "core/server/options.h"
#include "core/wire/message.h"

namespace infinistore {

// Take as long for what is wrong as for what is right.
bool equals_secret(std::string_view shown, std::string_view secret) noexcept;
bool equals_secret(const Nonce& shown, const Nonce& secret) noexcept;

// Who shows a token: a tenant, or (null) who may see all.
struct Caller {
  const Tenant* tenant = nullptr;
  bool reads_only = false;
};

// nullopt: the token is nobody's.  Looks at all of them, however early one fits.
std::optional<Caller> identify(const ServerOptions& options, std::string_view token) noexcept;

// The namespace that a caller means: a tenant's are below its own name, whatever it asks for.
std::string space_of(const Caller& caller, std::string_view asked);

}  // namespace infinistore
