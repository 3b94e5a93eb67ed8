#pragma once
// Stream limit: how fast plain sockets of this machine move blocks between two processes.
//
//   far end:   serve_streams(sockets, memory)      one thread a socket, until the other side closes
//   near end:  move_blocks(sockets, direction, addresses, block_bytes)      one thread a socket
//
// Each pass begins with a 32-byte request on every socket and ends, towards the far end, with one
// byte back, so that its time covers the last byte's arrival. Sockets are blocking and stay the
// caller's. Nothing is checked beyond what keeps a wrong request from touching other memory.

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/bytes.h"
#include "core/base/result.h"

namespace infinistore {

enum class StreamDirection : std::uint32_t { kToFar = 0, kFromFar = 1 };

// Serves every socket until it is closed; kOk then, else the first failure.
Code serve_streams(std::span<const int> sockets, MutableBytes memory);

// Moves all blocks, an equal share on each socket. The far end spreads block i over its memory in
// an order that depends on i alone, so that what was sent comes back when the same count is asked
// for.
Code move_blocks(std::span<const int> sockets, StreamDirection direction,
                 std::span<const std::uint64_t> addresses, std::size_t block_bytes);

}  // namespace infinistore
