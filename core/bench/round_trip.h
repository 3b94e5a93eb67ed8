#pragma once
// Round trip: how long this machine takes to wake another process and to be woken by it.
//
//   far end:   echo(in, out, bytes)                     until its stream closes
//   near end:  round_trips(out, in, bytes, taken_ns)    one message at a time, each timed
//
// For sockets `in` and `out` are one descriptor; for eventfds they are two, and a message is 8
// bytes. Descriptors are blocking and stay the caller's.

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/result.h"

namespace infinistore {

constexpr std::size_t kRoundTripBytesMax = 4096;

// Sends back every message of `bytes` bytes; kOk when the stream ends, else the first failure.
Code echo(int in, int out, std::size_t bytes) noexcept;

// Fills `taken_ns` with the nanoseconds of as many round trips. kInvalid for a message of no bytes
// or of more than kRoundTripBytesMax.
Code round_trips(int out, int in, std::size_t bytes, std::span<std::uint64_t> taken_ns) noexcept;

}  // namespace infinistore
