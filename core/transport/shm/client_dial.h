#pragma once
// Dialling a server of this machine by its unix socket.

#include <string>

#include "core/transport/tcp/client_dial.h"

namespace infinistore {

Result<UniqueFd> dial_unix(const std::string& path, DialDeadline deadline);

}  // namespace infinistore
