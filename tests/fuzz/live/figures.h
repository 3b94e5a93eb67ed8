#pragma once
// Figures: what all attackers count together; they lie in memory that the processes share.

#include <atomic>
#include <cstdint>
#include <stdexcept>

namespace infinistore::fuzz {

struct Figures {
  using Count = std::atomic<std::uint64_t>;

  Count frames_taken{0};  // by the server: a PING behind them on their connection was answered
  Count answers{0};       // frames of the server's, each of them decoded and expected
  Count connections{0};
  Count shared_memory_connections{0};
  Count broken{0};       // connections that broke the protocol, and were told so
  Count vanished{0};     // connections that ended in the middle of something
  Count fills{0};        // payloads and sums sent as they were granted
  Count descriptors{0};  // received with WELCOME
};

// Something that the server must not do.
struct Finding : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace infinistore::fuzz
