// A client with GPUs' memory against a server, in one process with the double of CUDA's driver: all
// threads that meet there are seen by sanitizers.
#include "core/client/client.h"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/device/gate.h"
#include "core/device/gpu.h"
#include "core/server/server.h"
#include "tests/fake_cuda/double.h"

namespace infinistore {
namespace {

constexpr std::size_t kBlock = 5000;
constexpr std::size_t kBlocks = 12;

struct TestServer {
  TestServer() {
    char name[] = "/tmp/fake-cuda-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    folder = name;
    server = std::make_unique<Server>(ServerOptions{.host = "127.0.0.1",
                                                    .port = 0,
                                                    .unix_socket = folder + "/socket",
                                                    .pool_bytes = 64u << 20,
                                                    .huge_pages = "auto",
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
                                                    .sessions_max = 64,
                                                    .heat_half_life_s = 2,
                                                    .log_level = "info",
                                                    .log_format = "text",
                                                    .version = "test",
                                                    .without_fencing = false});
    const auto started = server->start();
    REQUIRE_MESSAGE(started.ok(), (started.ok() ? "" : started.error().message));
    port = started.value().port;
  }
  ~TestServer() {
    server->stop(kSecond);
    server.reset();
    ::unlink((folder + "/socket").c_str());
    ::rmdir(folder.c_str());
  }

  std::unique_ptr<Client> connect(TransportChoice transport) const {
    auto client = Client::connect({.host = "127.0.0.1",
                                   .port = port,
                                   .token = "",
                                   .space = "space",
                                   .client_name = "test",
                                   .transport = transport,
                                   .tls = false,
                                   .tls_ca_file = {},
                                   .read_only = false,
                                   .rdma_device = "",
                                   .channels = 2,
                                   .connect_timeout = 20 * kSecond,
                                   .progress_timeout = 30 * kSecond,
                                   .verifies = true,
                                   .batch_keys_max = 5,
                                   .batch_bytes_max = 1u << 20,
                                   .requests_max = 8},
                                  clock);
    REQUIRE(client.ok());
    return std::move(*client);
  }

  MonotonicClock clock;
  std::string folder;
  std::unique_ptr<Server> server;
  std::uint16_t port = 0;
};

BatchSpec spec_of(Verb verb, const std::string& prefix, const DeviceBytes& memory, Gpu& gpu,
                  CuStream stream) {
  BatchSpec spec;
  spec.verb = verb;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    spec.keys.add(prefix + "-" + std::to_string(i));
    spec.addresses.push_back(memory.address() + i * kBlock);
  }
  spec.segments_per_key = 1;
  spec.segment_bytes = kBlock;
  spec.value_bytes = kBlock;
  if (prefix.back() % 2 == 0) spec.mover = Mover::kCopyEngine;
  auto gate = Gate::after(gpu, stream);
  REQUIRE(gate.ok());
  spec.gate = std::move(*gate);
  return spec;
}

bool all_are(const Batch& batch, Code code) {
  for (const auto outcome : batch.outcomes) {
    if (outcome != code) return false;
  }
  return true;
}

// Puts and gets behind work that ends at some moment, some of them cancelled at some other.
class Caller {
 public:
  Caller(Client& client, int number)
      : client_(client),
        number_(number),
        gpu_(*Gpu::of(number % 2).value()),
        stream_(make_stream(gpu_)),
        random_(static_cast<unsigned>(number)) {}
  ~Caller() { destroy_stream(gpu_, stream_); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  void turn(int turn) {
    const auto data = random_bytes(kBlocks * kBlock, random_());
    const DeviceBytes source(gpu_, data);
    const DeviceBytes target(gpu_, std::vector<std::byte>(data.size()));
    const std::string prefix = std::to_string(number_) + "-" + std::to_string(turn);
    const bool is_stored = run(Verb::kPut, prefix, source);
    const bool is_read = run(Verb::kGet, prefix, target);
    if (is_stored && is_read) {
      CHECK(target.bytes() == data);
      ++compared;
    }
  }

  std::atomic<int> compared = 0;

 private:
  // Whether all of it was moved.
  bool run(Verb verb, const std::string& prefix, const DeviceBytes& memory) {
    const std::uint64_t ticket = ++tickets();
    {
      const CurrentContext current(gpu_);
      if (random_() % 2 == 0) REQUIRE(fake_cuda_enqueue_wait(stream_, ticket) == 0);
    }
    Batch batch(spec_of(verb, prefix, memory, gpu_, stream_));
    client_.submit(batch);
    std::thread other([&] { fake_cuda_release(ticket); });
    if (random_() % 4 == 0) client_.cancel(batch);
    REQUIRE(client_.wait(batch, 60 * kSecond));
    other.join();
    return all_are(batch, Code::kOk);
  }

  static std::atomic<std::uint64_t>& tickets() {
    static std::atomic<std::uint64_t> last = 1000;
    return last;
  }

  Client& client_;
  const int number_;
  Gpu& gpu_;
  CuStream stream_;
  std::mt19937 random_;
};

}  // namespace

TEST_CASE("callers on many streams put and get at once, and cancel at any moment") {
  const TestServer server;
  for (const auto transport : {TransportChoice::kShm, TransportChoice::kTcp}) {
    fake_cuda_delay_us(100);
    const auto client = server.connect(transport);
    std::atomic<int> compared = 0;
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; ++number) {
      const int name = number + (transport == TransportChoice::kShm ? 0 : 100);
      threads.emplace_back([&client, &compared, name] {
        Caller caller(*client, name);
        for (int turn = 0; turn < 12; ++turn) caller.turn(turn);
        compared += caller.compared;
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK(compared > 8);
    client->close();
    fake_cuda_reset();
  }
  CHECK(fake_cuda_counter("faults") == 0);
  CHECK(fake_cuda_counter("registered_bytes") == 0);
  CHECK(fake_cuda_counter("live_events") == 0);
}

TEST_CASE("a client is closed while batches wait for their streams, and others for a GPU") {
  const TestServer server;
  auto& gpu = *Gpu::of(0).value();
  const DeviceBytes memory(gpu, random_bytes(kBlocks * kBlock, 1));
  for (const auto transport : {TransportChoice::kShm, TransportChoice::kTcp}) {
    const CuStream stream = make_stream(gpu);
    {
      const CurrentContext current(gpu);
      REQUIRE(fake_cuda_enqueue_wait(stream, 1) == 0);
    }
    auto client = server.connect(transport);
    const std::string name = transport == TransportChoice::kShm ? "shm" : "tcp";
    Batch waits(spec_of(Verb::kPut, name + " waits", memory, gpu, stream));
    Batch moves(spec_of(Verb::kPut, name + " moves", memory, gpu, nullptr));
    fake_cuda_hold(nullptr, true);
    client->submit(waits);
    client->submit(moves);
    wait_until([] { return fake_cuda_counter("kernels_waiting") > 0; });
    std::thread releases([] { fake_cuda_hold(nullptr, false); });
    client->close();
    CHECK(waits.is_done());
    CHECK(all_are(waits, Code::kClosed));
    CHECK(moves.is_done());
    client.reset();
    CHECK(fake_cuda_counter("registered_bytes") == 0);
    releases.join();
    fake_cuda_release(1);
    fake_cuda_reset();
    destroy_stream(gpu, stream);
  }
  CHECK(fake_cuda_counter("faults") == 0);
}

}  // namespace infinistore
