#pragma once
// Log: one line to standard error by one write(2), so that lines of threads and processes never
// mix.
//
// For what an operator must know; nothing is logged for each request.  Thread-safe.

#include <atomic>
#include <cstdint>
#include <string_view>

#include "core/base/clock.h"

namespace infinistore {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

class Log {
 public:
  explicit Log(LogLevel level, int fd = 2) noexcept : level_(level), fd_(fd) {}

  void write(LogLevel level, std::string_view text) noexcept;

  // At most one line a second of its kind: peers must not be able to fill a disk.  `last` belongs
  // to the caller, one for a kind of line.
  void write_limited(LogLevel level, std::string_view text, const Clock& clock,
                     std::atomic<Nanos>& last) noexcept;

 private:
  LogLevel level_;
  int fd_;
};

}  // namespace infinistore
