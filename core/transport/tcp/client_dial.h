#pragma once
// Dialling: a connected, non-blocking socket to a server, or why there is none.
//
// These wait, at most until `deadline` (of steady_clock); they are for threads that may.

#include <chrono>
#include <cstdint>
#include <string>

#include "core/base/fd.h"
#include "core/base/result.h"

namespace infinistore {

using DialDeadline = std::chrono::steady_clock::time_point;

// `host` is a name or a numeric address of IPv4 or IPv6; all addresses of a name are tried.
Result<UniqueFd> dial_tcp(const std::string& host, std::uint16_t port, DialDeadline deadline);

// The table of descriptors, this process's or the system's, is full: no server is to blame.
Error no_descriptor_left(const std::string& what);

// "host:port", as in a URL.
std::string shown(const std::string& host, std::uint16_t port);

// Whether `fd` became ready for `events` (of poll(2)) in time.
bool wait_ready(int fd, short events, DialDeadline deadline) noexcept;

}  // namespace infinistore
