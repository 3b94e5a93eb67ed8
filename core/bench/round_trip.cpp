#include "core/bench/round_trip.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>

namespace infinistore {
namespace {

// Eventfds add up what is written to them: a message of 1 stays one message.
using Message = std::array<std::byte, kRoundTripBytesMax>;

// kDisconnected at the stream's end.
Code read_message(int from, std::span<std::byte> message) noexcept {
  while (!message.empty()) {
    const ssize_t got = ::read(from, message.data(), message.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Code::kDisconnected;
    message = message.subspan(static_cast<std::size_t>(got));
  }
  return Code::kOk;
}

Code write_message(int to, std::span<const std::byte> message) noexcept {
  while (!message.empty()) {
    const ssize_t put = ::write(to, message.data(), message.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return Code::kDisconnected;
    message = message.subspan(static_cast<std::size_t>(put));
  }
  return Code::kOk;
}

bool is_sound(std::size_t bytes) noexcept { return bytes != 0 && bytes <= kRoundTripBytesMax; }

std::uint64_t now_ns() noexcept {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

}  // namespace

Code echo(int in, int out, std::size_t bytes) noexcept {
  if (!is_sound(bytes)) return Code::kInvalid;
  Message message{};
  const std::span used = std::span(message).first(bytes);
  while (true) {
    if (read_message(in, used) != Code::kOk) return Code::kOk;
    const Code sent = write_message(out, used);
    if (sent != Code::kOk) return sent;
  }
}

Code round_trips(int out, int in, std::size_t bytes, std::span<std::uint64_t> taken_ns) noexcept {
  if (!is_sound(bytes)) return Code::kInvalid;
  Message message{};
  message[0] = std::byte{1};
  const std::span used = std::span(message).first(bytes);
  for (std::uint64_t& taken : taken_ns) {
    const std::uint64_t start = now_ns();
    Code code = write_message(out, used);
    if (code == Code::kOk) code = read_message(in, used);
    if (code != Code::kOk) return code;
    taken = now_ns() - start;
  }
  return Code::kOk;
}

}  // namespace infinistore
