#pragma once
// WorkerMetrics: what one worker counts; only its thread writes, anybody reads.

#include <array>
#include <atomic>
#include <cstdint>

#include "core/base/metrics.h"
#include "core/wire/frame.h"

namespace infinistore {

// Written by one thread: a plain add on an atomic needs no locked instruction.
class Tally {
 public:
  void add(std::uint64_t step = 1) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + step, std::memory_order_relaxed);
  }
  std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct alignas(64) WorkerMetrics {
  std::array<Tally, kOpcodeLast + 1> requests;  // by opcode
  Tally received_bytes, sent_bytes;             // of values
  Tally sessions_begun, sessions_refused, sessions_unauthorized;
  Tally late_messages, protocol_errors, overloads, stalled_sessions, unfenced_ends;
  Tally false_alarms;  // values that a reader called damaged, and are not
  std::atomic<std::uint64_t> sessions{0};
  std::atomic<std::uint64_t> open_requests{0};  // puts, gets and suspects not answered yet
  Log2Histogram put_us, get_us;                 // from the request to its last word
};

}  // namespace infinistore
