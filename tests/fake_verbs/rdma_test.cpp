// A client and a server over the double of libibverbs, in one process: what goes wrong with devices
// goes wrong on request, and sanitizers see both ends.
//
// INFINISTORE_VERBS_LIBRARY names the double, which this program is linked with as well.
#include <doctest/doctest.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/client/client.h"
#include "core/server/server.h"
#include "core/transport/tls/certificate_testing.h"
#include "core/transport/tls/library.h"
#include "tests/fake_verbs/double.h"

namespace infinistore {
namespace {

constexpr std::size_t kBlock = 9000;
constexpr std::size_t kBlocks = 40;

ServerOptions server_options(std::string rdma, const TestCertificate* certificate) {
  return {.host = "127.0.0.1",
          .port = 0,
          .unix_socket = "",
          .pool_bytes = 64u << 20,
          .huge_pages = "off",
          .workers = 2,
          .rdma = std::move(rdma),
          .rdma_device = "",
          .token = "",
          .read_token = "",
          .tenants = {},
          .tls_cert_file = certificate == nullptr ? "" : certificate->chain(),
          .tls_key_file = certificate == nullptr ? "" : certificate->key(),
          .eviction = "lru",
          .stage_timeout_s = 30,
          .stage_share = 0.5,
          .lease_max_s = 300,
          .sessions_max = 64,
          .heat_half_life_s = 2,
          .log_level = "info",
          .log_format = "text",
          .version = "test",
          .without_fencing = false};
}

struct TestServer {
  explicit TestServer(std::string rdma = "on", const TestCertificate* shown = nullptr)
      : server(server_options(std::move(rdma), shown)), certificate(shown) {
    const auto started = server.start();
    REQUIRE_MESSAGE(started.ok(), (started.ok() ? "" : started.error().message));
    port = started.value().port;
    state = started.value().rdma;
  }
  ~TestServer() { server.stop(kSecond); }

  Result<std::unique_ptr<Client>> connect(TransportChoice transport,
                                          std::string device = "") const {
    return Client::connect({.host = "127.0.0.1",
                            .port = port,
                            .token = "",
                            .space = "space",
                            .client_name = "test",
                            .transport = transport,
                            .tls = certificate != nullptr,
                            .tls_ca_file = certificate == nullptr ? "" : certificate->chain(),
                            .read_only = false,
                            .rdma_device = std::move(device),
                            .channels = 2,
                            .connect_timeout = 20 * kSecond,
                            .progress_timeout = 30 * kSecond,
                            .verifies = true,
                            .batch_keys_max = 16,
                            .batch_bytes_max = 1u << 20,
                            .requests_max = 8},
                           clock);
  }
  std::unique_ptr<Client> client() const {
    auto made = connect(TransportChoice::kRdma);
    REQUIRE_MESSAGE(made.ok(), (made.ok() ? "" : made.error().message));
    CHECK((*made)->server().uses_rdma);
    return std::move(*made);
  }
  std::uint64_t counter(std::string_view name) const {
    for (const auto& each : server.snapshot()) {
      if (each.name == name) return each.value;
    }
    return ~std::uint64_t{0};
  }

  MonotonicClock clock;
  Server server;
  const TestCertificate* certificate;
  std::uint16_t port = 0;
  std::string state;
};

std::vector<std::byte> random_bytes(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (auto& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

BatchSpec spec_of(Verb verb, const std::string& prefix, std::vector<std::byte>& memory) {
  BatchSpec spec;
  spec.verb = verb;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    spec.keys.add(prefix + "-" + std::to_string(i));
    spec.addresses.push_back(reinterpret_cast<std::uintptr_t>(memory.data()) + i * kBlock);
  }
  spec.segment_bytes = spec.value_bytes = kBlock;
  return spec;
}

// What became of it: the first outcome that is not kOk.  `failure`: why.
Code run(Client& client, Verb verb, const std::string& prefix, std::vector<std::byte>& memory,
         Error* failure = nullptr) {
  Batch batch(spec_of(verb, prefix, memory));
  client.submit(batch);
  REQUIRE(client.wait(batch, 60 * kSecond));
  if (failure != nullptr) *failure = batch.failure();
  for (const auto outcome : batch.outcomes) {
    if (outcome != Code::kOk) return outcome;
  }
  return Code::kOk;
}

template <class Condition, class Why>
void wait_until(Condition holds, Why why) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds()) {
    REQUIRE_MESSAGE(std::chrono::steady_clock::now() < end, why());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

template <class Condition>
void wait_until(Condition holds) {
  wait_until(holds, [] { return std::string("it does not come to hold"); });
}

// Everything comes back: what was reserved, registered, and made.
void check_nothing_is_left(const TestServer& server) {
  wait_until([&] { return server.counter("sessions") == 0; });
  CHECK(server.counter("reserved_bytes") == 0);
  CHECK(server.counter("pins") == 0);
  CHECK(server.counter("unaccounted_bytes") == 0);
  CHECK(server.server.check_integrity() == "");
  CHECK(fake_verbs_live_queue_pairs() == 0);
  CHECK(fake_verbs_live_registrations() == 1);  // the pool's
  CHECK(fake_verbs_overflows() == 0);
}

}  // namespace

TEST_CASE("by TLS queue pairs are attached, and bulk bytes go past it") {
  const TestCertificate certificate;
  if (!certificate.are_made() || !load_tls_library()) {
    MESSAGE("no OpenSSL here: TLS is not tested");
    return;
  }
  const TestServer server("on", &certificate);
  {
    const auto client = server.client();
    auto source = random_bytes(kBlock * kBlocks, 1);
    std::vector<std::byte> target(source.size());
    CHECK(run(*client, Verb::kPut, "tls", source) == Code::kOk);
    CHECK(run(*client, Verb::kGet, "tls", target) == Code::kOk);
    CHECK(source == target);
  }
  check_nothing_is_left(server);
}

TEST_CASE("what is put over RDMA is got over it, and over TCP") {
  const TestServer server;
  CHECK(server.state == "fake0:1 (RoCE v2)");
  auto client = server.client();
  auto source = random_bytes(kBlocks * kBlock, 1);
  CHECK(run(*client, Verb::kPut, "a", source) == Code::kOk);
  std::vector<std::byte> target(source.size());
  CHECK(run(*client, Verb::kGet, "a", target) == Code::kOk);
  CHECK(target == source);
  CHECK(client->counters().rdma_bytes == 2 * source.size());
  auto plain = server.connect(TransportChoice::kTcp);
  REQUIRE(plain.ok());
  std::vector<std::byte> other(source.size());
  CHECK(run(**plain, Verb::kGet, "a", other) == Code::kOk);
  CHECK(other == source);
  CHECK((*plain)->counters().rdma_bytes == 0);
  client.reset();
  (*plain)->close();
  check_nothing_is_left(server);
}

TEST_CASE("more work than a device takes waits its turn") {
  const TestServer server;
  auto client = server.client();
  auto source = random_bytes(kBlocks * kBlock, 2);
  std::vector<std::unique_ptr<Batch>> batches;
  for (int i = 0; i < 40; ++i) {
    batches.push_back(std::make_unique<Batch>(spec_of(Verb::kPut, std::to_string(i), source)));
    client->submit(*batches.back());
  }
  for (auto& batch : batches) {
    REQUIRE(client->wait(*batch, 60 * kSecond));
    for (const auto outcome : batch->outcomes) CHECK(outcome == Code::kOk);
  }
  CHECK(fake_verbs_orders_seen() <= 64);
  client.reset();
  check_nothing_is_left(server);
}

TEST_CASE("an order that fails fails its request, and the next one is served by a new queue pair") {
  const TestServer server;
  auto client = server.client();
  auto source = random_bytes(kBlocks * kBlock, 3);
  std::vector<std::byte> target(source.size());
  int turn = 0;
  for (const int status : {4, 9, 10, 11, 12, 13, 21}) {
    CAPTURE(status);
    const auto name = std::to_string(++turn);
    fake_verbs_fail_orders(status, 1);
    CHECK(run(*client, Verb::kPut, name, source) != Code::kOk);
    wait_until([&] { return run(*client, Verb::kPut, name + "again", source) == Code::kOk; });
    fake_verbs_fail_orders(status, 1);
    CHECK(run(*client, Verb::kGet, name + "again", target) != Code::kOk);
    wait_until([&] { return run(*client, Verb::kGet, name + "again", target) == Code::kOk; });
    CHECK(target == source);
  }
  fake_verbs_fail_orders(0, 0);
  client.reset();
  check_nothing_is_left(server);
}

TEST_CASE("the caller hears in words what the device said") {
  const TestServer server;
  auto client = server.client();
  auto source = random_bytes(kBlocks * kBlock, 4);
  fake_verbs_fail_orders(12, 1);
  Batch batch(spec_of(Verb::kPut, "a", source));
  client->submit(batch);
  REQUIRE(client->wait(batch, 60 * kSecond));
  CHECK(batch.failure().code == Code::kDisconnected);
  CHECK(batch.failure().message.find("retries exceeded") != std::string::npos);
  fake_verbs_fail_orders(0, 0);
}

TEST_CASE("a port that is down is a failure until it is up again") {
  const TestServer server;
  auto client = server.client();
  auto source = random_bytes(kBlocks * kBlock, 5);
  fake_verbs_set_port(0);
  CHECK(run(*client, Verb::kPut, "a", source) == Code::kDisconnected);
  const auto refused = server.connect(TransportChoice::kRdma);
  CHECK(refused.code() == Code::kSetup);
  CHECK(refused.error().message.find("no port of fake0 is active") != std::string::npos);
  fake_verbs_set_port(1);
  Error last;
  const auto stored = [&] {  // some of it by a turn before, over the other connection
    const auto outcome = run(*client, Verb::kPut, "b", source, &last);
    return last.code == Code::kOk && (outcome == Code::kOk || outcome == Code::kExists);
  };
  wait_until(stored, [&] { return last.message; });
}

TEST_CASE("memory that cannot be registered is an error over RDMA") {
  const TestServer server;
  auto client = server.client();
  auto source = random_bytes(kBlocks * kBlock, 6);
  fake_verbs_limit_memory(64u << 20, EFAULT);
  Batch put(spec_of(Verb::kPut, "a", source));
  client->submit(put);
  REQUIRE(client->wait(put, 60 * kSecond));
  CHECK(put.failure().code == Code::kSetup);
  CHECK(put.failure().message.find("cannot be registered") != std::string::npos);
  Batch get(spec_of(Verb::kGet, "a", source));
  client->submit(get);
  REQUIRE(client->wait(get, 60 * kSecond));
  CHECK(get.failure().code == Code::kSetup);
  fake_verbs_limit_memory(~0ULL, 0);
  CHECK(run(*client, Verb::kPut, "b", source) == Code::kOk);
  client.reset();
  check_nothing_is_left(server);
}

TEST_CASE("memory that is kept is registered once, until it is forgotten") {
  const TestServer server;
  auto client = server.client();
  auto source = random_bytes(kBlocks * kBlock, 7);
  CHECK(client->keep(source).code == Code::kOk);
  CHECK(client->keep(std::span(source).subspan(10, 20)).code == Code::kInvalid);
  CHECK(run(*client, Verb::kPut, "a", source) == Code::kOk);
  CHECK(fake_verbs_live_registrations() == 2);
  const auto before = source;
  std::fill(source.begin(), source.end(), std::byte{0});
  CHECK(run(*client, Verb::kGet, "a", source) == Code::kOk);
  CHECK(source == before);
  CHECK(fake_verbs_live_registrations() == 2);
  client->forget(source.data());
  CHECK(fake_verbs_live_registrations() == 1);
  client.reset();
  check_nothing_is_left(server);
}

TEST_CASE("callers at once, some of whom give up") {
  const TestServer server;
  auto client = server.client();
  std::vector<std::thread> callers;
  for (unsigned number = 0; number < 4; ++number) {
    callers.emplace_back([&client, number] {
      std::mt19937 random(number);
      for (int turn = 0; turn < 20; ++turn) {
        const auto name = std::to_string(number) + "-" + std::to_string(turn);
        auto source = random_bytes(kBlocks * kBlock, static_cast<unsigned>(random()));
        const bool is_stored = run(*client, Verb::kPut, name, source) == Code::kOk;
        CHECK(is_stored);
        std::vector<std::byte> target(source.size());
        Batch get(spec_of(Verb::kGet, name, target));
        client->submit(get);
        if (random() % 3 == 0) client->cancel(get);
        CHECK(client->wait(get, 60 * kSecond));
        for (std::size_t i = 0; i < kBlocks; ++i) {
          if (get.outcomes[i] == Code::kOk) {
            CHECK(std::memcmp(&target[i * kBlock], &source[i * kBlock], kBlock) == 0);
          } else {
            CHECK(get.outcomes[i] == Code::kCancelled);
          }
        }
        // It is ours again: nobody writes there any more.
        std::fill(target.begin(), target.end(), std::byte{1});
      }
    });
  }
  for (auto& caller : callers) caller.join();
  client.reset();
  check_nothing_is_left(server);
}

TEST_CASE("a server without RDMA refuses it by name, and is served over TCP otherwise") {
  const TestServer server("off");
  const auto refused = server.connect(TransportChoice::kRdma);
  CHECK(refused.code() == Code::kSetup);
  const auto other = server.connect(TransportChoice::kAuto);
  REQUIRE(other.ok());
  CHECK_FALSE(other.value()->server().uses_rdma);
  CHECK(other.value()->server().no_rdma_reason != "");
}

TEST_CASE("a device that is not there is named") {
  const TestServer server;
  const auto refused = server.connect(TransportChoice::kRdma, "mlx5_7");
  CHECK(refused.code() == Code::kSetup);
  CHECK(refused.error().message.find("mlx5_7") != std::string::npos);
}

}  // namespace infinistore
