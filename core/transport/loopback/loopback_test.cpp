#include "core/transport/loopback/loopback.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>

namespace infinistore {
namespace {

void say(const UniqueFd& fd, const std::string& text) {
  REQUIRE(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(text.size()));
}

// What comes until `size` bytes are there, the stream ends, or nothing happens for a while.
std::string hear(const UniqueFd& fd, std::size_t size, int patience_ms = 1000) {
  std::string text;
  while (text.size() < size) {
    pollfd ready{.fd = fd.get(), .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, patience_ms) <= 0) break;
    std::string piece(size - text.size(), '\0');
    const auto got = ::read(fd.get(), piece.data(), piece.size());
    if (got <= 0) break;
    text.append(piece, 0, static_cast<std::size_t>(got));
  }
  return text;
}

bool has_ended(const UniqueFd& fd) {
  pollfd ready{.fd = fd.get(), .events = POLLIN, .revents = 0};
  char byte = 0;
  return ::poll(&ready, 1, 1000) > 0 && ::read(fd.get(), &byte, 1) == 0;
}

}  // namespace

TEST_CASE("without faults a loopback is a stream like any other") {
  Loopback loopback({});
  const auto client = loopback.take_client_end();
  auto server = loopback.take_server_end();
  say(client, "to the server");
  CHECK(hear(server, 13) == "to the server");
  say(server, "back");
  CHECK(hear(client, 4) == "back");
  server.reset();
  CHECK(has_ended(client));
}

TEST_CASE("a loopback changes the byte it is told to") {
  Loopback loopback({.to_server = {.piece_bytes_max = 3, .corrupt_at = 4}});
  const auto client = loopback.take_client_end();
  const auto server = loopback.take_server_end();
  say(client, "abcdefgh");
  const auto heard = hear(server, 8);
  CHECK(heard.substr(0, 4) == "abcd");
  CHECK(heard[4] == static_cast<char>(~'e'));
  CHECK(heard.substr(5) == "fgh");
}

TEST_CASE("a loopback cuts both ways where it is told to") {
  Loopback loopback({.to_client = {.cut_at = 5}});
  const auto client = loopback.take_client_end();
  const auto server = loopback.take_server_end();
  say(server, "abcdefgh");
  CHECK(hear(client, 8) == "abcde");
  CHECK(has_ended(client));
  CHECK(has_ended(server));
}

TEST_CASE("a loopback swallows what it is told to, and the stream stays open") {
  Loopback loopback({.to_server = {.drop_from = 3}});
  const auto client = loopback.take_client_end();
  const auto server = loopback.take_server_end();
  say(client, "abcdefgh");
  CHECK(hear(server, 8, 50) == "abc");
  say(server, "still here");
  CHECK(hear(client, 10) == "still here");
}

TEST_CASE("a loopback delays") {
  Loopback loopback({.to_server = {.delay = 30 * kMillisecond}});
  const auto client = loopback.take_client_end();
  const auto server = loopback.take_server_end();
  const MonotonicClock clock;
  const Nanos start = clock.now();
  say(client, "abc");
  CHECK(hear(server, 3) == "abc");
  CHECK(clock.now() - start >= 30 * kMillisecond);
}

}  // namespace infinistore
