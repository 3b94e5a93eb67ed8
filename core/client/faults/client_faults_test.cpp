// Servers that do wrong: whatever they send, the client's part ends, and its process lives on.
#include <doctest/doctest.h>

#include <algorithm>

#include "core/client/client.h"
#include "core/client/client_fixture.h"

namespace infinistore {
namespace {

TEST_CASE("a server that breaks the protocol loses the connection, and nothing else breaks") {
  struct Case {
    const char* name;
    Verb verb;
    std::function<void(FakePeer&, std::uint64_t id)> answer;
  };
  const auto cases = std::vector<Case>{
      {"no frame", Verb::kPut, [](auto& peer, auto) { peer.send_raw(Body(64, std::byte{0x42})); }},
      {"unknown id", Verb::kPut,
       [](auto& peer, auto id) { peer.send(Opcode::kResult, id + 1, encode(ResultReply{})); }},
      {"wrong opcode", Verb::kPut,
       [](auto& peer, auto id) { peer.send(Opcode::kMatched, id, encode(MatchedReply{})); }},
      {"RESULT before GRANT", Verb::kPut,
       [](auto& peer, auto id) {
         peer.send(Opcode::kResult, id, encode(ResultReply{all(3, Code::kOk)}));
       }},
      {"GRANT for fewer", Verb::kPut,
       [](auto& peer, auto id) {
         peer.send(Opcode::kGrant, id, encode(GrantReply{all(2, Code::kOk), {}}));
       }},
      {"two GRANTs", Verb::kPut,
       [](auto& peer, auto id) {
         const auto grant = encode(GrantReply{all(3, Code::kExists), {}});
         peer.send(Opcode::kGrant, id, grant);
         peer.send(Opcode::kGrant, id, grant);
       }},
      {"garbled GRANT", Verb::kPut,
       [](auto& peer, auto id) { peer.send(Opcode::kGrant, id, Body(3, std::byte{9})); }},
      {"DATA for a put", Verb::kPut,
       [](auto& peer, auto id) { peer.send(Opcode::kData, id, data_reply(3), Body(3 * kBlock)); }},
      {"DATA without its payload", Verb::kGet,
       [](auto& peer, auto id) { peer.send(Opcode::kData, id, data_reply(3)); }},
      {"DATA with too much", Verb::kGet,
       [](auto& peer, auto id) {
         peer.send(Opcode::kData, id, data_reply(3), Body(3 * kBlock + 1));
       }},
      {"DATA of another range", Verb::kGet,
       [](auto& peer, auto id) {
         peer.send(Opcode::kData, id, data_reply(3, kBlock - 1), Body(3 * kBlock));
       }},
      {"DATA for more keys", Verb::kGet,
       [](auto& peer, auto id) { peer.send(Opcode::kData, id, data_reply(4), Body(4 * kBlock)); }},
      {"malformed ERROR", Verb::kGet,
       [](auto& peer, auto id) { peer.send(Opcode::kError, id, Body(1)); }},
  };
  for (const auto& test : cases) {
    CAPTURE(test.name);
    const auto outcomes = run(
        [&](FakePeer& peer) {
          if (const auto frame = peer.next()) test.answer(peer, frame->header.request_id);
          while (peer.next()) {
          }
        },
        test.verb);
    CHECK(outcomes == all(3, Code::kProtocol));
  }
}

TEST_CASE(
    "a deadline that passes over shared memory ends in GOODBYE: nothing is written any more") {
  for (const auto verb : {Verb::kPut, Verb::kGet}) {
    std::vector<Opcode> heard;
    const auto outcomes = run(
        [&](FakePeer& peer) {
          if (!peer.shares_memory()) return;
          while (const auto frame = peer.next()) heard.push_back(frame->header.opcode);
        },
        verb, 1, 1 << 20);
    CHECK(outcomes == all(1, Code::kTimeout));
    CHECK(heard == std::vector{verb == Verb::kPut ? Opcode::kPut : Opcode::kGet, Opcode::kGoodbye});
  }
}

TEST_CASE("bytes that were copied after the connection's end are no damage of the value's") {
  constexpr std::size_t kPool = 1 << 20;
  const std::vector<Extents> extents = {{{0, 0, kBlock}}};
  const auto outcome = [&](bool ends) {
    return run(
               [&](FakePeer& peer) {
                 if (!peer.shares_memory()) return;
                 const auto get = peer.next();
                 if (!get) return;
                 // Zeros, whose sum is not 0.
                 peer.send(Opcode::kData, get->header.request_id, data_reply(1, kBlock, extents));
                 while (!ends && peer.next()) {
                 }
               },
               Verb::kGet, 1, kPool)
        .front();
  };
  CHECK(outcome(false) == Code::kCorrupt);
  // The client may be quicker than the end: then it is damage.
  Code code = Code::kCorrupt;
  for (int i = 0; i < 200 && code == Code::kCorrupt; ++i) code = outcome(true);
  CHECK(code == Code::kDisconnected);
}

TEST_CASE("memory that the server names is checked before it is touched") {
  constexpr std::size_t kPool = 1 << 20;
  const std::vector<Extents> wrong = {
      {{0, kPool, kBlock}},                    // behind the end
      {{0, kPool - kBlock + 1, kBlock}},       // over the end
      {{0, ~std::uint64_t{0} - 100, kBlock}},  // around the end of all numbers
      {{0, 0, ~std::uint64_t{0}}},             //
      {{1, 0, kBlock}},                        // no such region
      {{0, 0, kBlock - 1}},                    // too short
      {{0, 0, kBlock}, {0, 8192, 1}},          // too long
      {{0, 0, kBlock - 1000}, {0, 8192, 0}},   // nothing
  };
  for (const auto& extents : wrong) {
    CAPTURE(extents.front().offset);
    for (const auto verb : {Verb::kPut, Verb::kGet}) {
      const auto outcomes = run(
          [&](FakePeer& peer) {
            const auto frame = peer.next();
            if (!frame) return;
            const auto id = frame->header.request_id;
            if (verb == Verb::kPut) {
              peer.send(Opcode::kGrant, id, encode(GrantReply{{Code::kOk}, {extents}}));
            } else {
              peer.send(Opcode::kData, id, data_reply(1, kBlock, {extents}));
            }
            while (peer.next()) {
            }
          },
          verb, 1, kPool);
      CHECK(outcomes == all(1, Code::kProtocol));
    }
  }
}

TEST_CASE(
    "bytes in the frame that are not what was asked for end the connection, in shared memory too") {
  constexpr std::size_t kPool = 1 << 20;
  struct Case {
    const char* name;
    std::size_t count;
    std::size_t payload_bytes;
    bool is_copied;
    bool has_extents;
  };
  for (const auto& test : {Case{"no payload", 3, 0, true, false},  //
                           Case{"too little", 3, 3 * kBlock - 1, true, false},
                           Case{"too much", 3, 3 * kBlock + 1, true, false},
                           Case{"of more keys", 4, 4 * kBlock, true, false},
                           Case{"extents as well", 3, 3 * kBlock, true, true},
                           Case{"not said", 3, 3 * kBlock, false, true}}) {
    CAPTURE(test.name);
    std::vector<Extents> extents;
    if (test.has_extents) extents.assign(test.count, {{0, 0, kBlock}});
    const auto outcomes = run(
        [&](FakePeer& peer) {
          if (!peer.shares_memory()) return;
          if (const auto frame = peer.next()) {
            peer.send(Opcode::kData, frame->header.request_id,
                      data_reply(test.count, kBlock, extents), Body(test.payload_bytes),
                      test.is_copied ? kFlagDataCopied : 0);
          }
          while (peer.next()) {
          }
        },
        Verb::kGet, 3, kPool);
    CHECK(outcomes == all(3, Code::kProtocol));
  }
}

TEST_CASE("a server that dies or stalls within the bytes of a frame ends the get in time") {
  for (const bool dies : {true, false}) {
    CAPTURE(dies);
    const FakeServer server(
        [&](FakePeer& peer) {
          if (!peer.shares_memory()) return;
          const auto get = peer.next();
          if (!get) return;
          const auto body = data_reply(3);
          const auto header = encode_header({.opcode = Opcode::kData,
                                             .flags = kFlagDataCopied,
                                             .request_id = get->header.request_id,
                                             .body_bytes = static_cast<std::uint32_t>(body.size()),
                                             .payload_bytes = 3 * kBlock},
                                            body);
          Body part(header.begin(), header.end());
          part.insert(part.end(), body.begin(), body.end());
          part.resize(part.size() + kBlock + 7);
          peer.send_raw(part);
          while (!dies && peer.next()) {
          }
        },
        1 << 20);
    Memory memory(3);
    Batch batch(memory.spec(Verb::kGet));
    const auto client = connect_to(server, TransportChoice::kShm);
    client->submit(batch);
    REQUIRE(client->wait(batch, 5 * kSecond));
    CHECK(batch.failure().code == (dies ? Code::kDisconnected : Code::kTimeout));
    CHECK(batch.outcomes == all(3, batch.failure().code));
  }
}

TEST_CASE("shared memory that could shrink under us is not used") {
  const FakeServer server([](FakePeer& peer) { peer.next(); }, 1 << 20, false);
  const auto client = connect_to(server, TransportChoice::kAuto);
  CHECK_FALSE(client->server().shares_memory);
  CHECK(client->server().no_sharing_reason.find("sealed") != std::string::npos);
}

TEST_CASE("a silent server is given up, and the next call finds the connection anew") {
  std::atomic<int> calls{0};
  const FakeServer server([&](FakePeer& peer) {
    while (const auto frame = peer.next()) {
      if (++calls == 1) continue;  // never answered
      peer.send(Opcode::kResult, frame->header.request_id, encode(ResultReply{}));
    }
  });
  const auto client = connect_to(server);
  Call first(CallSpec{});
  const Nanos before = kClock.now();
  client->submit(first);
  REQUIRE(first.wait(5 * kSecond));
  CHECK(first.failure().code == Code::kTimeout);
  CHECK(kClock.now() - before >= 200 * kMillisecond);
  Call second(CallSpec{});
  client->submit(second);
  REQUIRE(second.wait(5 * kSecond));
  CHECK(second.failure().code == Code::kOk);
  CHECK(server.connections() == 2);
}

TEST_CASE("an ERROR ends the request that it names, or the connection") {
  const FakeServer server([](FakePeer& peer) {
    auto frame = peer.next();
    peer.send(Opcode::kError, frame->header.request_id,
              encode(ErrorReply{Code::kLeaseExpired, "too late"}));
    frame = peer.next();
    if (frame) peer.send(Opcode::kError, 0, encode(ErrorReply{Code::kDraining, "going away"}));
    peer.next();
  });
  Memory memory(1);
  Batch refused(memory.spec(Verb::kGet));
  Batch lost(memory.spec(Verb::kGet));
  const auto client = connect_to(server);
  client->submit(refused);
  REQUIRE(refused.wait(5 * kSecond));
  CHECK(refused.outcomes == all(1, Code::kLeaseExpired));
  CHECK(refused.failure().message == "too late");
  client->submit(lost);
  REQUIRE(lost.wait(5 * kSecond));
  CHECK(lost.outcomes == all(1, Code::kDraining));
}

TEST_CASE("a closed client ends what comes after with kClosed") {
  const FakeServer server([](FakePeer& peer) { peer.next(); });
  const auto client = connect_to(server);
  client->close();
  Memory memory(1);
  Batch batch(memory.spec(Verb::kPut));
  client->submit(batch);
  REQUIRE(batch.wait(kSecond));
  CHECK(batch.outcomes == all(1, Code::kClosed));
  client->close();
}

}  // namespace
}  // namespace infinistore
