// Answers that bring long copies wait for each other in the channel, not in the socket.
#include <doctest/doctest.h>

#include "core/base/checksum.h"
#include "core/client/client_fixture.h"

namespace infinistore {
namespace {

constexpr std::size_t kLarge = 300'000;

// One key and one segment of kLarge bytes.
BatchSpec large(Verb verb, std::string_view key, std::vector<std::byte>& bytes) {
  BatchSpec spec;
  spec.verb = verb;
  spec.segments_per_key = 1;
  spec.segment_bytes = kLarge;
  spec.value_bytes = kLarge;
  spec.keys.add(key);
  bytes.resize(kLarge);
  spec.addresses = {reinterpret_cast<std::uintptr_t>(bytes.data())};
  return spec;
}

Extents place(std::size_t index) { return {{0, index * (1 << 19), kLarge}}; }

std::vector<std::byte> filled(std::size_t index) {
  return std::vector<std::byte>(kLarge, static_cast<std::byte>(index + 1));
}

std::uint64_t sum_of(std::size_t index) { return checksum(filled(index), 0); }

}  // namespace

TEST_CASE(
    "answers that come together are dealt with in turn, and the next requests go out between") {
  constexpr std::size_t kBatches = 6;  // of which 4 are in flight
  const FakeServer server(
      [&](FakePeer& peer) {
        if (!peer.shares_memory()) return;
        std::vector<std::uint64_t> ids;
        for (std::size_t i = 0; i < 4; ++i) ids.push_back(peer.next()->header.request_id);
        for (std::size_t i = 0; i < 4; ++i) {
          peer.send(Opcode::kGrant, ids[i], encode(GrantReply{{Code::kOk}, {place(i)}}));
        }
        for (std::size_t filled = 0; filled < kBatches;) {
          const auto frame = peer.next();
          const auto id = frame->header.request_id;
          if (frame->header.opcode == Opcode::kPut) {
            peer.send(Opcode::kGrant, id, encode(GrantReply{{Code::kOk}, {place(ids.size())}}));
            ids.push_back(id);
            continue;
          }
          CHECK(frame->header.opcode == Opcode::kFill);
          CHECK(id == ids[filled]);
          CHECK(decode_fill(frame->body, true)->checksums == std::vector{sum_of(filled)});
          ++filled;
          peer.send(Opcode::kResult, id, encode(ResultReply{{Code::kOk}}));
        }
        peer.next();
      },
      4 << 20);
  std::vector<std::vector<std::byte>> memory(kBatches);
  std::vector<std::unique_ptr<Batch>> batches;
  {
    const auto client = connect_to(server, TransportChoice::kShm);
    for (std::size_t i = 0; i < kBatches; ++i) {
      memory[i] = filled(i);
      batches.push_back(
          std::make_unique<Batch>(large(Verb::kPut, "key" + std::to_string(i), memory[i])));
      client->submit(*batches.back());
    }
    for (const auto& batch : batches) REQUIRE(client->wait(*batch, 5 * kSecond));
  }
  for (std::size_t i = 0; i < kBatches; ++i) {
    CHECK(batches[i]->outcomes == all(1, Code::kOk));
    CHECK(std::memcmp(server.pool().data() + i * (1 << 19), memory[i].data(), kLarge) == 0);
  }
}

TEST_CASE("what follows an answer that waits its turn waits behind it") {
  // Nothing granted, and the RESULT at once: both arrive while another's copies are due.
  std::vector<std::byte> one = filled(0);
  std::vector<std::byte> other = filled(1);
  Batch put(large(Verb::kPut, "one", one));
  Batch refused(large(Verb::kPut, "other", other));
  const FakeServer server(
      [&](FakePeer& peer) {
        if (!peer.shares_memory()) return;
        const auto first = peer.next()->header.request_id;
        const auto second = peer.next()->header.request_id;
        peer.send(Opcode::kGrant, first, encode(GrantReply{{Code::kOk}, {place(0)}}));
        peer.send(Opcode::kGrant, second, encode(GrantReply{{Code::kExists}, {}}));
        peer.send(Opcode::kResult, second, encode(ResultReply{{Code::kExists}}));
        CHECK(peer.next()->header.opcode == Opcode::kFill);
        peer.send(Opcode::kResult, first, encode(ResultReply{{Code::kOk}}));
        peer.next();
      },
      1 << 20);
  const auto client = connect_to(server, TransportChoice::kShm);
  client->submit(put);
  client->submit(refused);
  CHECK(client->wait(put, 5 * kSecond));
  CHECK(client->wait(refused, 5 * kSecond));
  CHECK(put.outcomes == all(1, Code::kOk));
  CHECK(refused.outcomes == all(1, Code::kExists));
}

TEST_CASE("a server that answers one request again and again loses the connection") {
  for (const auto verb : {Verb::kPut, Verb::kGet}) {
    std::vector<std::byte> memory;
    Batch batch(large(verb, "k", memory));
    const FakeServer server(
        [&](FakePeer& peer) {
          if (!peer.shares_memory()) return;
          const auto id = peer.next()->header.request_id;
          for (int i = 0; i < 100; ++i) {
            if (verb == Verb::kPut) {
              peer.send(Opcode::kGrant, id, encode(GrantReply{{Code::kOk}, {place(0)}}));
            } else {
              DataReply data{
                  .outcomes = {Code::kOk}, .found = {{kLarge, kLarge, 0}}, .extents = {place(0)}};
              peer.send(Opcode::kData, id, encode(data));
            }
          }
          while (peer.next()) {
          }
        },
        1 << 20);
    const auto client = connect_to(server, TransportChoice::kShm);
    client->submit(batch);
    CHECK(client->wait(batch, 5 * kSecond));
    CHECK(batch.outcomes.front() != Code::kOk);
    Call next(CallSpec{});
    client->submit(next);
    CHECK(next.wait(5 * kSecond));
    CHECK(client->counters().disconnects >= 1);
  }
}

TEST_CASE("a connection that ends takes with it the answers that waited their turn") {
  const FakeServer server(
      [&](FakePeer& peer) {
        if (!peer.shares_memory()) return;
        std::size_t put_count = 0;
        while (const auto frame = put_count < 3 ? peer.next() : std::nullopt) {
          if (frame->header.opcode != Opcode::kPut) continue;
          peer.send(Opcode::kGrant, frame->header.request_id,
                    encode(GrantReply{{Code::kOk}, {place(put_count++)}}));
        }
      },
      2 << 20);
  const auto client = connect_to(server, TransportChoice::kShm);
  std::vector<std::vector<std::byte>> memory(3);
  std::vector<std::unique_ptr<Batch>> batches;
  for (auto& bytes : memory) {
    batches.push_back(std::make_unique<Batch>(large(Verb::kPut, "k", bytes)));
    client->submit(*batches.back());
  }
  for (const auto& batch : batches) {
    REQUIRE(client->wait(*batch, 5 * kSecond));
    CAPTURE(batch->failure().message);
    CHECK(batch->failure().code == Code::kDisconnected);
    CHECK(batch->outcomes == all(1, Code::kDisconnected));
  }
}

TEST_CASE("over shared memory few bytes may come in the frame, and are verified") {
  for (const bool is_damaged : {false, true}) {
    Memory memory(2);
    const Memory source(2);
    const FakeServer server(
        [&](FakePeer& peer) {
          if (!peer.shares_memory()) return;
          const auto get = peer.next();
          REQUIRE(get);
          CHECK(get->header.flags == kFlagGetTakesCopy);
          DataReply data{.outcomes = all(2, Code::kOk), .found = {}, .extents = {}};
          for (std::size_t i = 0; i < 2; ++i) {
            data.found.push_back({kBlock, kBlock, checksum(source.block(i), 0)});
          }
          Body payload = source.bytes;
          if (is_damaged) payload[kBlock + 1] ^= std::byte{1};
          peer.send(Opcode::kData, get->header.request_id, encode(data), payload, kFlagDataCopied);
          const auto next = peer.next();  // no DONE
          REQUIRE(next);
          CHECK(next->header.opcode == (is_damaged ? Opcode::kSuspect : Opcode::kPing));
          peer.send(Opcode::kResult, next->header.request_id,
                    encode(is_damaged ? ResultReply{{Code::kOk}} : ResultReply{}));
          peer.answer_all();
        },
        1 << 20);
    const auto client = connect_to(server, TransportChoice::kShm);
    std::ranges::fill(memory.bytes, std::byte{0});
    Batch batch(memory.spec(Verb::kGet));
    client->submit(batch);
    REQUIRE(client->wait(batch, 5 * kSecond));
    Call ping(CallSpec{});  // behind the ERASE
    client->submit(ping);
    ping.wait(5 * kSecond);
    const Code second = is_damaged ? Code::kCorrupt : Code::kOk;
    CHECK(batch.outcomes == std::vector<Code>{Code::kOk, second});
    CHECK(std::ranges::equal(memory.block(0), source.block(0)));
  }
}

}  // namespace infinistore
