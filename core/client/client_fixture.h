#pragma once
// What the client's tests share: a client of a fake server, and memory to move.

#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <vector>

#include "core/client/client.h"
#include "core/client/fake_server.h"

namespace infinistore {

inline constexpr std::size_t kBlock = 5000;

inline const MonotonicClock kClock;

inline ClientOptions options_for(const FakeServer& server,
                                 TransportChoice transport = TransportChoice::kTcp) {
  return {.host = "127.0.0.1",
          .port = server.port(),
          .token = "",
          .space = "test",
          .client_name = "test",
          .transport = transport,
          .tls = false,
          .tls_ca_file = {},
          .read_only = false,
          .rdma_device = {},
          .channels = 1,
          .connect_timeout = kSecond,
          .progress_timeout = 200 * kMillisecond,
          .verifies = true,
          .batch_keys_max = 16,
          .batch_bytes_max = 1 << 20,
          .requests_max = 4};
}

inline std::unique_ptr<Client> connect_to(const FakeServer& server,
                                          TransportChoice transport = TransportChoice::kTcp) {
  auto client = Client::connect(options_for(server, transport), kClock);
  REQUIRE_MESSAGE(client.ok(), client.error().message);
  return std::move(*client);
}

// The caller's memory: blocks of random bytes, each in segments of 1,000 bytes, and their batch.
struct Memory {
  explicit Memory(std::size_t count) : bytes(count * kBlock) {
    std::mt19937_64 random(count);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  }
  Bytes block(std::size_t index) const { return Bytes(bytes).subspan(index * kBlock, kBlock); }
  BatchSpec spec(Verb verb) {
    BatchSpec spec;
    spec.verb = verb;
    spec.segments_per_key = 5;
    spec.segment_bytes = 1000;
    spec.value_bytes = kBlock;
    for (std::size_t i = 0; i < bytes.size() / kBlock; ++i) {
      spec.keys.add("key" + std::to_string(i));
      for (std::size_t s = 0; s < 5; ++s) {
        spec.addresses.push_back(
            reinterpret_cast<std::uintptr_t>(bytes.data() + i * kBlock + s * 1000));
      }
    }
    return spec;
  }
  std::vector<std::byte> bytes;
};

// Runs a batch of `count` keys against a script; its outcomes.
inline std::vector<Code> run(FakeServer::Script script, Verb verb, std::size_t count = 3,
                             std::size_t pool_bytes = 0) {
  const FakeServer server(std::move(script), pool_bytes);
  Memory memory(count);
  Batch batch(memory.spec(verb));
  const auto client =
      connect_to(server, pool_bytes > 0 ? TransportChoice::kShm : TransportChoice::kTcp);
  client->submit(batch);
  CHECK(client->wait(batch, 5 * kSecond));
  return batch.outcomes;
}

inline std::vector<Code> all(std::size_t count, Code code) {
  return std::vector<Code>(count, code);
}

inline Body data_reply(std::size_t count, std::uint64_t bytes = kBlock,
                       std::vector<Extents> extents = {}) {
  DataReply data;
  data.outcomes = all(count, Code::kOk);
  data.found = std::vector<FoundItem>(count, FoundItem{kBlock, bytes, 0});
  data.extents = std::move(extents);
  return encode(data);
}

}  // namespace infinistore
