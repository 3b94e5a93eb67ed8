#include "core/server/server.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "core/transport/tcp/listen.h"

namespace infinistore {
namespace {

ServerOptions some_options() {
  return {.host = "127.0.0.1",
          .port = 0,
          .unix_socket = "/tmp/infinistore-server-test-" + std::to_string(::getpid()) + ".sock",
          .pool_bytes = 16u << 20,
          .huge_pages = "off",
          .workers = 2,
          .rdma = "off",
          .rdma_device = "",
          .token = "",
          .read_token = "",
          .tenants = {},
          .tls_cert_file = {},
          .tls_key_file = {},
          .eviction = "lru",
          .stage_timeout_s = 30,
          .stage_share = 0.25,
          .lease_max_s = 300,
          .sessions_max = 10,
          .heat_half_life_s = 2,
          .log_level = "info",
          .log_format = "text",
          .version = "test",
          .without_fencing = false};
}

std::uint64_t counter(const Server& server, std::string_view name) {
  for (const auto& each : server.snapshot()) {
    if (each.name == name) return each.value;
  }
  FAIL("no counter " << name);
  return 0;
}

std::string refusal(const ServerOptions& options) {
  Server server(options);
  const auto started = server.start();
  REQUIRE_FALSE(started.ok());
  CHECK(started.code() == Code::kSetup);
  return started.error().message;
}

}  // namespace

TEST_CASE("a server starts, answers about itself, and leaves no socket behind") {
  const auto options = some_options();
  Server server(options);
  CHECK(server.snapshot().empty());
  const auto started = server.start();
  REQUIRE(started.ok());
  CHECK(started.value().port != 0);
  CHECK(started.value().pool_bytes == options.pool_bytes);
  struct stat facts{};
  CHECK(::stat(options.unix_socket.c_str(), &facts) == 0);
  CHECK(counter(server, "capacity_bytes") == options.pool_bytes);
  CHECK(counter(server, "workers") == 2);
  CHECK(server.start().code() == Code::kSetup);
  server.stop(kSecond);
  server.stop(kSecond);
  CHECK(::stat(options.unix_socket.c_str(), &facts) != 0);
  CHECK(counter(server, "sessions") == 0);
}

TEST_CASE("a namespace that nobody used has no keys, and asking does not make it") {
  Server server(some_options());
  REQUIRE(server.start().ok());
  CHECK(server.key_count("nobody's") == 0);
  CHECK(server.purge("nobody's") == 0);
  CHECK(server.purge(std::nullopt) == 0);
  CHECK(server.key_count(std::nullopt) == 0);
  CHECK(server.staged(10).empty());
  CHECK(server.evict(1 << 20) == 0);
  CHECK(counter(server, "namespaces") == 0);
}

TEST_CASE("what cannot be started says why, and what to do") {
  auto taken = listen_tcp("127.0.0.1", 0);
  REQUIRE(taken.ok());
  auto options = some_options();
  options.port = taken->port;
  CHECK(refusal(options).find(std::to_string(taken->port)) != std::string::npos);
  CHECK(refusal(options).find("--port") != std::string::npos);
  options = some_options();
  options.host = "203.0.113.1";
  CHECK(refusal(options).find("address of this machine") != std::string::npos);
  options = some_options();
  options.eviction = "best";
  CHECK(refusal(options).find("lru") != std::string::npos);
  options = some_options();
  options.unix_socket = "/no/such/folder/socket";
  CHECK(refusal(options).find("--unix-socket") != std::string::npos);
  options = some_options();
  options.huge_pages = "maybe";
  CHECK(refusal(options).find("auto, on or off") != std::string::npos);
}

TEST_CASE("it listens on IPv6 and on names") {
  CHECK(listen_tcp("localhost", 0).ok());
  const auto six = listen_tcp("::1", 0);
  if (!six.ok()) MESSAGE("no IPv6 here: " << six.error().message);
  CHECK(listen_tcp("no.such.host.invalid", 0).code() == Code::kSetup);
}

}  // namespace infinistore
