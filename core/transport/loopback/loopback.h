#pragma once
// Loopback: a connection inside one process, with faults on demand.
//
// Two socket pairs and a thread that carries bytes between them: what either end sees is a stream
// socket like any other, however badly the thread behaves.

#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>

#include "core/base/clock.h"
#include "core/base/fd.h"

namespace infinistore {

// What goes wrong with the bytes of one direction.  Positions count from the stream's first byte.
struct LoopbackFaults {
  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

  Nanos delay = 0;                          // before each piece is handed on
  std::size_t piece_bytes_max = 64 * 1024;  // short reads and writes
  std::uint64_t cut_at = kNever;            // both directions end
  std::uint64_t drop_from = kNever;         // swallowed from here on, the stream stays open
  std::uint64_t corrupt_at = kNever;        // this byte is inverted
};

class Loopback {
 public:
  struct Options {
    LoopbackFaults to_server = {};
    LoopbackFaults to_client = {};
  };

  explicit Loopback(const Options& options);  // throws std::system_error without descriptors
  ~Loopback();
  Loopback(const Loopback&) = delete;
  Loopback& operator=(const Loopback&) = delete;

  UniqueFd take_client_end() { return std::move(client_end_); }
  UniqueFd take_server_end() { return std::move(server_end_); }

 private:
  class Direction;
  void carry();

  Options options_;
  UniqueFd client_end_, client_side_;  // given out, and the thread's end of it
  UniqueFd server_end_, server_side_;
  UniqueFd wakeup_;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace infinistore
