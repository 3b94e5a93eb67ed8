#include "core/base/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>

namespace infinistore {
namespace {

constexpr std::size_t kLineBytesMax = 2048;
constexpr std::array<std::string_view, 4> kLevelNames = {"DEBUG", "INFO", "WARNING", "ERROR"};

char printable(char c) noexcept {
  return static_cast<unsigned char>(c) >= 0x20 && c != 0x7F ? c : '?';
}

class Line {
 public:
  void add(std::string_view text) noexcept {
    const std::size_t step = std::min(text.size(), bytes_.size() - 1 - size_);
    std::memcpy(bytes_.data() + size_, text.data(), step);
    size_ += step;
  }
  void add_printable(std::string_view text) noexcept {
    for (const char c : text) {
      const char shown = printable(c);
      add({&shown, 1});
    }
  }
  // Within a string of JSON, of which `end` still has to fit.
  void add_json(std::string_view text, std::string_view end) noexcept {
    for (const char c : text) {
      std::array<char, 8> shown{};
      const std::size_t size = escape(printable(c), shown);
      if (size_ + size + end.size() > bytes_.size() - 1) break;
      add({shown.data(), size});
    }
    add(end);
  }
  std::string_view finish() noexcept {
    bytes_[size_] = '\n';
    return {bytes_.data(), size_ + 1};
  }

 private:
  // Bytes beyond ASCII may come from anybody, and JSON is UTF-8: they are shown as \xNN.
  static std::size_t escape(char c, std::array<char, 8>& into) noexcept {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) {
      into = {'\\', '\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
      return 5;
    }
    if (c == '"' || c == '\\') {
      into = {'\\', c};
      return 2;
    }
    into = {c};
    return 1;
  }

  std::array<char, kLineBytesMax> bytes_;
  std::size_t size_ = 0;
};

// As the management's lines have it: this machine's time, or that of the world by ISO 8601.
void add_time(Line& line, const timespec& now, bool is_iso) noexcept {
  tm parts{};
  if (is_iso) {
    ::gmtime_r(&now.tv_sec, &parts);
  } else {
    ::localtime_r(&now.tv_sec, &parts);
  }
  std::array<char, 40> stamp{};
  const char* const format = is_iso ? "%Y-%m-%dT%H:%M:%S" : "%Y-%m-%d %H:%M:%S";
  const auto size = std::strftime(stamp.data(), stamp.size(), format, &parts);
  line.add({stamp.data(), size});
  if (!is_iso) return;
  const auto ms = static_cast<unsigned>(now.tv_nsec / 1'000'000);
  const auto digit = [](unsigned of) { return static_cast<char>('0' + of % 10); };
  const std::array<char, 4> fraction = {'.', digit(ms / 100), digit(ms / 10), digit(ms)};
  line.add({fraction.data(), fraction.size()});
  line.add("+00:00");
}

}  // namespace

std::string_view level_name(LogLevel level) noexcept {
  return kLevelNames[static_cast<std::size_t>(level)];
}

LogLevel level_of(std::string_view name) noexcept {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  return name == "warning" ? LogLevel::kWarning : LogLevel::kError;
}

void Log::write(LogLevel level, std::string_view text) noexcept {
  if (level < level_) return;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  Line line;
  if (format_ == LogFormat::kJson) {
    line.add(R"({"time": ")");
    add_time(line, now, true);
    line.add(R"(", "level": ")");
    line.add(level_name(level));
    line.add(R"(", "logger": "infinistore.core", "message": ")");
    line.add_json(text, R"("})");
  } else {
    add_time(line, now, false);
    line.add(" ");
    line.add(level_name(level));
    line.add(" infinistore.core: ");
    line.add_printable(text);  // a peer's words may be in it
  }
  const auto bytes = line.finish();
  [[maybe_unused]] const auto put = ::write(fd_, bytes.data(), bytes.size());
  if (level >= LogLevel::kWarning) keep(level, now.tv_sec, text);
}

void Log::keep(LogLevel level, std::time_t time_s, std::string_view text) noexcept {
  const MutexLock lock(mutex_);
  Kept& kept = kept_[kept_count_++ % kRecentLines];
  kept.time_s = time_s;
  kept.level = level;
  kept.size = std::min(text.size(), kRecentBytes);
  std::transform(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(kept.size),
                 kept.text.begin(), printable);
}

std::vector<LogLine> Log::recent() const {
  const MutexLock lock(mutex_);
  std::vector<LogLine> lines;
  for (std::size_t i = kept_count_ - std::min(kept_count_, kRecentLines); i < kept_count_; ++i) {
    const Kept& kept = kept_[i % kRecentLines];
    lines.push_back(
        {.time_s = kept.time_s, .level = kept.level, .text = {kept.text.data(), kept.size}});
  }
  return lines;
}

void Log::write_limited(LogLevel level, std::string_view text, const Clock& clock,
                        std::atomic<Nanos>& last) noexcept {
  const Nanos now = clock.now();
  Nanos before = last.load();
  if (before != 0 && now - before < kSecond) return;
  if (last.compare_exchange_strong(before, now)) write(level, text);
}

}  // namespace infinistore
