#pragma once
// Listening TCP sockets, and what every accepted one is set to.

#include <cstdint>
#include <string>

#include "core/base/fd.h"
#include "core/base/result.h"

namespace infinistore {

struct TcpListener {
  UniqueFd socket;
  std::uint16_t port = 0;  // the one asked for, or the one that 0 chose
};

// `host` is an address (IPv4, IPv6) or a name.  kSetup names what is wrong and the remedy.
Result<TcpListener> listen_tcp(const std::string& host, std::uint16_t port);

// No delay; a peer that lost power is noticed within about a minute.
void tune_tcp(int socket) noexcept;

}  // namespace infinistore
