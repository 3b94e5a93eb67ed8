#pragma once
// Log: one line to standard error by one write(2), so that lines of threads and processes never
// mix.
//
// For what an operator must know; nothing is logged for each request.  Thread-safe.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"

namespace infinistore {

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

std::string_view level_name(LogLevel level) noexcept;
LogLevel level_of(std::string_view name) noexcept;  // debug, info, warning; else: error

enum class LogFormat : std::uint8_t { kText, kJson };

struct LogLine {
  std::time_t time_s = 0;
  LogLevel level = LogLevel::kInfo;
  std::string text;
};

class Log {
 public:
  explicit Log(LogLevel level, int fd = 2, LogFormat format = LogFormat::kText) noexcept
      : level_(level), fd_(fd), format_(format) {}

  void write(LogLevel level, std::string_view text) noexcept;

  // At most one line a second of its kind: peers must not be able to fill a disk.  `last` belongs
  // to the caller, one for a kind of line.
  void write_limited(LogLevel level, std::string_view text, const Clock& clock,
                     std::atomic<Nanos>& last) noexcept;

  // The newest warnings and errors, oldest first; long ones cut.
  std::vector<LogLine> recent() const;

 private:
  static constexpr std::size_t kRecentLines = 64;
  static constexpr std::size_t kRecentBytes = 240;
  struct Kept {
    std::time_t time_s = 0;
    LogLevel level = LogLevel::kInfo;
    std::size_t size = 0;
    std::array<char, kRecentBytes> text{};
  };
  void keep(LogLevel level, std::time_t time_s, std::string_view text) noexcept;

  LogLevel level_;
  int fd_;
  LogFormat format_;
  mutable Mutex mutex_;
  std::array<Kept, kRecentLines> kept_ GUARDED_BY(mutex_);
  std::size_t kept_count_ GUARDED_BY(mutex_) = 0;  // ever
};

}  // namespace infinistore
