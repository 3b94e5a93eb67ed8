#pragma once
// What tests of streams share: an owner that keeps what it hears, and two ends of a connection.

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/transport/loopback/loopback.h"
#include "core/transport/stream.h"

namespace infinistore {

// Keeps what it hears; takes payloads into memory of its own.
class Recorder final : public StreamOwner {
 public:
  Payload* on_frame(const FrameHeader& header, Bytes body) override {
    frames.push_back({header, std::string(text_of(body))});
    if (on_next_frame) std::exchange(on_next_frame, nullptr)();
    if (header.payload_bytes == 0 || refuses) return nullptr;
    payloads.emplace_back(header.payload_bytes, '\0');
    auto& memory = payloads.back();
    place = std::make_unique<Scatter>();
    // Three pieces, to see them kept apart.
    const std::size_t third = memory.size() / 3;
    auto* data = reinterpret_cast<std::byte*>(memory.data());
    place->add(data, third);
    place->add(data + third, third);
    place->add(data + 2 * third, memory.size() - 2 * third);
    return place.get();
  }
  void on_garbage(Garbage what) override { garbage = what; }
  void on_payload(const FrameHeader&) override { ++payload_count; }
  void on_sent(std::uint64_t request_id) override { sent.push_back(request_id); }
  void on_close(const Error& error) override { ends.push_back(error); }

  struct Heard {
    FrameHeader header;
    std::string body;
  };
  std::vector<Heard> frames;
  std::deque<std::string> payloads;
  std::unique_ptr<Scatter> place;
  std::size_t payload_count = 0;
  std::vector<std::uint64_t> sent;
  std::vector<Error> ends;
  std::optional<Garbage> garbage;
  bool refuses = false;
  std::function<void()> on_next_frame;
};

inline std::vector<std::byte> body_of(std::string_view text) {
  const auto bytes = bytes_of(text);
  return {bytes.begin(), bytes.end()};
}

struct Ends {
  // What each end speaks TLS with, given its socket; nullptr: they do not.
  using Secure = std::function<std::unique_ptr<Tls>(int socket, Tls::Side side)>;

  explicit Ends(const Loopback::Options& options = {}, const Secure& secure = nullptr)
      : carried(std::in_place, options) {
    begin(carried->take_client_end(), carried->take_server_end(), secure);
  }
  // Without a carrier between them: what one sends is there at once for the other.
  static Ends direct() {
    std::array<int, 2> fds{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) == 0);
    return {UniqueFd(fds[0]), UniqueFd(fds[1])};
  }
  template <class Condition>
  bool until(Condition condition) {
    const MonotonicClock clock;
    const Nanos deadline = clock.now() + 10 * kSecond;
    while (!condition() && clock.now() < deadline) {
      poller.poll(5 * kMillisecond);
      one->deliver();
      other->deliver();
    }
    return condition();
  }

  std::optional<Loopback> carried;
  Poller poller;
  Recorder one_owner, other_owner;
  std::unique_ptr<Stream> one, other;

 private:
  Ends(UniqueFd one_end, UniqueFd other_end) { begin(std::move(one_end), std::move(other_end)); }
  void begin(UniqueFd one_end, UniqueFd other_end, const Secure& secure = nullptr) {
    auto client = secure ? secure(one_end.get(), Tls::Side::kClient) : nullptr;
    auto server = secure ? secure(other_end.get(), Tls::Side::kServer) : nullptr;
    one = std::make_unique<Stream>(std::move(one_end), poller, one_owner, std::move(client));
    other = std::make_unique<Stream>(std::move(other_end), poller, other_owner, std::move(server));
  }
};

}  // namespace infinistore
