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
  std::string_view finish() noexcept {
    bytes_[size_] = '\n';
    return {bytes_.data(), size_ + 1};
  }

 private:
  std::array<char, kLineBytesMax> bytes_;
  std::size_t size_ = 0;
};

}  // namespace

std::string_view level_name(LogLevel level) noexcept {
  return kLevelNames[static_cast<std::size_t>(level)];
}

void Log::write(LogLevel level, std::string_view text) noexcept {
  if (level < level_) return;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm local{};
  ::localtime_r(&now.tv_sec, &local);
  std::array<char, 32> stamp{};
  const auto size = std::strftime(stamp.data(), stamp.size(), "%Y-%m-%d %H:%M:%S", &local);
  Line line;
  line.add({stamp.data(), size});
  line.add(" ");
  line.add(level_name(level));
  line.add(" infinistore.core: ");
  line.add_printable(text);  // a peer's words may be in it
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
