// Frames of a server that come late, again, or in another order: no caller's memory changes by
// them.
#include <doctest/doctest.h>

#include <algorithm>
#include <thread>

#include "core/base/checksum.h"
#include "core/client/client.h"
#include "core/client/client_fixture.h"

namespace infinistore {
namespace {

constexpr std::size_t kPool = 1 << 20;

Body data_of(const Memory& source, std::size_t count, std::vector<Extents> extents = {}) {
  DataReply data;
  data.outcomes = all(count, Code::kOk);
  for (std::size_t i = 0; i < count; ++i) {
    data.found.push_back({kBlock, kBlock, checksum(source.block(i), 0)});
  }
  data.extents = std::move(extents);
  return encode(data);
}

Body payload_of(const Memory& source, std::size_t count) {
  return {source.bytes.begin(), source.bytes.begin() + static_cast<std::ptrdiff_t>(count * kBlock)};
}

void wait_for_end(FakePeer& peer) {
  while (peer.next()) {
  }
}

// Submits `batch` and waits for it; then until the client has seen that the connection is over.
void run_to_end(Client& client, Batch& batch) {
  client.submit(batch);
  REQUIRE(client.wait(batch, 5 * kSecond));
  for (int i = 0; i < 5'000 && client.counters().violations == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

TEST_CASE("an answer that comes again after its request has ended is refused and writes nothing") {
  const Memory source(3);
  struct Case {
    const char* name;
    Verb verb;
    std::function<void(FakePeer&, std::uint64_t id)> again;
  };
  const auto cases = std::vector<Case>{
      {"DATA", Verb::kGet,
       [&](auto& peer, auto id) {
         peer.send(Opcode::kData, id, data_of(source, 3), Body(3 * kBlock, std::byte{0xEE}));
       }},
      {"DATA of nothing", Verb::kGet,
       [&](auto& peer, auto id) {
         peer.send(Opcode::kData, id, encode(DataReply{all(3, Code::kMissing), {}, {}}));
       }},
      {"GRANT", Verb::kPut,
       [&](auto& peer, auto id) {
         peer.send(Opcode::kGrant, id, encode(GrantReply{all(3, Code::kOk), {}}));
       }},
      {"RESULT", Verb::kPut,
       [&](auto& peer, auto id) {
         peer.send(Opcode::kResult, id, encode(ResultReply{all(3, Code::kMissing)}));
       }},
      {"MATCHED", Verb::kGet,
       [&](auto& peer, auto id) {
         peer.send(Opcode::kMatched, id, encode(MatchedReply{.blocks = 3, .lease_id = 9}));
       }},
      {"COUNTERS", Verb::kPut,
       [&](auto& peer, auto id) { peer.send(Opcode::kCounters, id, encode(CountersReply{})); }},
  };
  for (const auto& test : cases) {
    CAPTURE(test.name);
    std::atomic<int> served{0};
    const FakeServer server([&](FakePeer& peer) {
      const auto frame = peer.next();
      if (!frame) return;
      const auto id = frame->header.request_id;
      if (test.verb == Verb::kGet) {
        peer.send(Opcode::kData, id, data_of(source, 3), payload_of(source, 3));
      } else {
        peer.send(Opcode::kGrant, id, encode(GrantReply{all(3, Code::kExists), {}}));
        peer.send(Opcode::kResult, id, encode(ResultReply{all(3, Code::kExists)}));
      }
      if (++served == 1) test.again(peer, id);
      wait_for_end(peer);
    });
    Memory memory(3);
    const auto sent = memory.bytes;
    Batch batch(memory.spec(test.verb));
    const auto client = connect_to(server);
    run_to_end(*client, batch);
    CHECK(client->counters().violations == 1);
    CHECK(batch.outcomes == all(3, test.verb == Verb::kGet ? Code::kOk : Code::kExists));
    CHECK(memory.bytes == (test.verb == Verb::kGet ? source.bytes : sent));
    // The next operation finds a new connection, and is served.
    Batch next(memory.spec(test.verb));
    client->submit(next);
    REQUIRE(client->wait(next, 5 * kSecond));
    CHECK(next.outcomes == batch.outcomes);
    CHECK(server.connections() == 2);
  }
}

TEST_CASE("a GRANT again, or a RESULT before its FILL, never has a pool's memory written twice") {
  for (const std::string_view what : {"GRANT again", "RESULT first", "GRANT after RESULT"}) {
    CAPTURE(what);
    const Extents first = {{0, 0, kBlock}};
    const Extents second = {{0, 65'536, kBlock}};
    FakeServer server(
        [&](FakePeer& peer) {
          if (!peer.shares_memory()) return;
          const auto put = peer.next();
          if (!put) return;
          const auto id = put->header.request_id;
          const auto result = encode(ResultReply{all(1, Code::kOk)});
          if (what == "RESULT first") peer.send(Opcode::kResult, id, result);
          peer.send(Opcode::kGrant, id, encode(GrantReply{{Code::kOk}, {first}}));
          if (what == "GRANT after RESULT") {
            peer.next();  // FILL
            peer.send(Opcode::kResult, id, result);
          }
          peer.send(Opcode::kGrant, id, encode(GrantReply{{Code::kOk}, {second}}));
          wait_for_end(peer);
        },
        kPool);
    std::ranges::fill(server.pool(), std::byte{0});
    Memory memory(1);
    Batch batch(memory.spec(Verb::kPut));
    const auto client = connect_to(server, TransportChoice::kShm);
    run_to_end(*client, batch);
    CHECK(client->counters().violations == 1);
    const bool is_done = what == "GRANT after RESULT";
    CHECK(batch.outcomes == all(1, is_done ? Code::kOk : Code::kProtocol));
    CHECK(std::ranges::all_of(server.pool().subspan(65'536, kBlock),
                              [](auto byte) { return byte == std::byte{0}; }));
  }
}

TEST_CASE("answers in another order than the requests each find their own") {
  const Memory source(2);
  const FakeServer server([&](FakePeer& peer) {
    const auto one = peer.next();
    const auto two = peer.next();
    if (!one || !two) return;
    CHECK(one->header.request_id < two->header.request_id);
    Body second(source.block(1).begin(), source.block(1).end());
    DataReply data;
    data.outcomes = {Code::kOk};
    data.found = {{kBlock, kBlock, checksum(source.block(1), 0)}};
    peer.send(Opcode::kData, two->header.request_id, encode(data), second);
    peer.send(Opcode::kData, one->header.request_id, data_of(source, 1), payload_of(source, 1));
    wait_for_end(peer);
  });
  Memory first(1);
  Memory other(1);
  Batch one(first.spec(Verb::kGet));
  Batch two(other.spec(Verb::kGet));
  const auto client = connect_to(server);
  client->submit(one);
  client->submit(two);
  REQUIRE(client->wait(one, 5 * kSecond));
  REQUIRE(client->wait(two, 5 * kSecond));
  CHECK(std::ranges::equal(first.block(0), source.block(0)));
  CHECK(std::ranges::equal(other.block(0), source.block(1)));
}

TEST_CASE("DATA for a get that was cancelled goes nowhere, over either transport") {
  for (const bool shares : {false, true}) {
    CAPTURE(shares);
    const Memory source(3);
    std::atomic<bool> is_asked{false};
    std::atomic<bool> is_cancelled{false};
    std::atomic<bool> is_done{false};
    const FakeServer server(
        [&](FakePeer& peer) {
          if (shares && !peer.shares_memory()) return;
          const auto get = peer.next();
          if (!get) return;
          is_asked = true;
          while (!is_cancelled) std::this_thread::yield();
          const auto id = get->header.request_id;
          if (shares) {
            peer.send(Opcode::kData, id,
                      data_of(source, 3, std::vector<Extents>(3, {{0, 0, kBlock}})));
          } else {
            peer.send(Opcode::kData, id, data_of(source, 3), payload_of(source, 3));
          }
          while (const auto frame = peer.next()) {
            is_done = is_done || frame->header.opcode == Opcode::kDone;
            if (frame->header.opcode != Opcode::kPing) continue;
            peer.send(Opcode::kResult, frame->header.request_id, encode(ResultReply{}));
          }
        },
        shares ? kPool : 0);
    Memory memory(3);
    const auto before = memory.bytes;
    Batch batch(memory.spec(Verb::kGet));
    const auto client = connect_to(server, shares ? TransportChoice::kShm : TransportChoice::kTcp);
    client->submit(batch);
    while (!is_asked) std::this_thread::yield();
    client->cancel(batch);
    REQUIRE(client->wait(batch, 5 * kSecond));
    CHECK(batch.outcomes == all(3, Code::kCancelled));
    is_cancelled = true;
    CallSpec spec;
    spec.opcode = Opcode::kPing;
    Call ping(std::move(spec));
    client->submit(ping);
    REQUIRE(ping.wait(5 * kSecond));
    CHECK(ping.failure().code == Code::kOk);
    CHECK(memory.bytes == before);
    for (int i = 0; shares && !is_done && i < 5'000; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(is_done == shares);  // the server's pins go
  }
}

TEST_CASE("answers that come after the client gave up meet a connection of their own end") {
  const Memory source(1);
  std::atomic<int> connections{0};
  const FakeServer server([&](FakePeer& peer) {
    const bool is_first = ++connections == 1;
    const auto get = peer.next();
    if (!get) return;
    if (is_first) std::this_thread::sleep_for(std::chrono::milliseconds(400));  // timeout is 200
    const Body wrong(kBlock, std::byte{0xEE});
    peer.send(Opcode::kData, get->header.request_id, data_of(source, 1),
              is_first ? wrong : payload_of(source, 1));
    wait_for_end(peer);
  });
  Memory memory(1);
  const auto before = memory.bytes;
  Batch late(memory.spec(Verb::kGet));
  const auto client = connect_to(server);
  client->submit(late);
  REQUIRE(client->wait(late, 5 * kSecond));
  CHECK(late.outcomes == all(1, Code::kTimeout));
  CHECK(memory.bytes == before);
  Batch next(memory.spec(Verb::kGet));
  client->submit(next);
  REQUIRE(client->wait(next, 5 * kSecond));
  CHECK(next.outcomes == all(1, Code::kOk));
  CHECK(memory.bytes == source.bytes);
}

}  // namespace infinistore
