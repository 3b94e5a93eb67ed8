#include "core/server/session/session.h"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include "core/server/session/session_testing.h"

namespace infinistore {
namespace {

using testing::for_each_transport;
using testing::Harness;
using testing::Peer;
using Codes = std::vector<Code>;

GetRequest whole(std::vector<std::string_view> keys, std::uint64_t bytes) {
  GetRequest request;
  request.keys = std::move(keys);
  request.ranges.items = {{0, 0, bytes}};
  return request;
}

std::string pattern(std::size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  for (auto& byte : bytes) byte = static_cast<char>(seed = seed * 1103515245 + 12345);
  return bytes;
}

// The end of a connection, perhaps after an ERROR; returns its code.
Code end_of(Peer& peer) {
  Code code = Code::kOk;
  while (const auto frame = peer.receive()) {
    if (frame->header.opcode != Opcode::kError) continue;
    const auto error = decode_error(frame->body);
    REQUIRE(error.has_value());
    code = error->code;
  }
  return code;
}

}  // namespace

TEST_CASE("what is put is got, byte for byte, over every transport") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    const auto value = pattern(100'001, 1);
    const auto other = pattern(64, 2);
    CHECK(peer.put({{"big", value}, {"small", other}}) == Codes{Code::kOk, Code::kOk});
    const auto big = peer.get(whole({"big", "gone"}, value.size()));
    CHECK(big.outcomes == Codes{Code::kOk, Code::kMissing});
    CHECK(big.found.at(0) == value);
    CHECK(peer.get(whole({"small"}, other.size())).found.at(0) == other);
    CHECK(peer.get(whole({"gone"}, 5)).outcomes == Codes{Code::kMissing});
    CHECK(harness.worker().metrics().received_bytes.get() == value.size() + other.size());
  });
}

TEST_CASE("a present key is kept, or replaced if that is asked") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    CHECK(peer.put({{"k", "old"}}) == Codes{Code::kOk});
    CHECK(peer.put({{"k", "new"}}) == Codes{Code::kExists});
    CHECK(peer.put({{"k", "longer"}}) == Codes{Code::kSizeMismatch});
    CHECK(peer.get(whole({"k"}, 3)).found.at(0) == "old");
    CHECK(peer.put({{"k", "longer"}}, OnExists::kReplace) == Codes{Code::kOk});
    CHECK(peer.get(whole({"k"}, 6)).found.at(0) == "longer");
  });
}

TEST_CASE("a key that stands twice in a batch is written once") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    CHECK(peer.put({{"k", "one"}, {"k", "one"}}) == Codes{Code::kOk, Code::kExists});
    CHECK(peer.get(whole({"k", "k"}, 3)).found == std::vector<std::string>{"one", "one"});
    CHECK(harness.store().counters().keys == 1);
  });
}

TEST_CASE("what contradicts itself is invalid and harms nothing") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    CHECK(peer.put({{"k", "x", 10, 10}}) == Codes{Code::kInvalid});
    CHECK(peer.put({{"k", "", 10, 0}}) == Codes{Code::kInvalid});
    CHECK(peer.put({{"k", "xx", 10, ~std::uint64_t{0}}}) == Codes{Code::kInvalid});
    CHECK(peer.get(whole({"k"}, 0)).outcomes == Codes{Code::kMissing});
    CHECK(peer.put({{"k", "0123456789"}}) == Codes{Code::kOk});
    CHECK(peer.get(whole({"k"}, 0)).outcomes == Codes{Code::kInvalid});
    CHECK(peer.get(whole({"k"}, 11)).outcomes == Codes{Code::kSizeMismatch});
  });
}

TEST_CASE("ranges of a value are read alone, up to its end if that is asked") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    peer.put({{"k", "0123456789"}});
    auto request = whole({"k"}, 4);
    request.ranges.items = {{10, 3, 4}};
    CHECK(peer.get(request).found.at(0) == "3456");
    request.ranges.items = {{0, 8, 100}};
    CHECK(peer.get(request, kFlagGetUpTo).found.at(0) == "89");
    request.ranges.items = {{0, 10, 1}};
    CHECK(peer.get(request, kFlagGetUpTo).outcomes == Codes{Code::kSizeMismatch});
    request.ranges.items = {{11, 0, 4}};
    CHECK(peer.get(request).outcomes == Codes{Code::kSizeMismatch});
  });
}

TEST_CASE("a value larger than the pool, or than may be unsealed, is refused") {
  for_each_transport([](auto transport) {
    Harness harness(transport, {.pool_bytes = 2u << 20});
    auto peer = harness.connect();
    CHECK(peer.put({{"k", "x", 3u << 20, 0}}) == Codes{Code::kTooLarge});
    const Codes both = peer.put({{"a", pattern(900'000, 1)}, {"b", pattern(900'000, 1)}});
    CHECK(both == Codes{Code::kOk, Code::kOverloaded});
    CHECK(peer.put({{"b", pattern(900'000, 1)}}) == Codes{Code::kOk});
  });
}

TEST_CASE("a full pool evicts, and what is leased stays") {
  for_each_transport([](auto transport) {
    Harness harness(transport, {.pool_bytes = 2u << 20});
    auto peer = harness.connect();
    const auto value = pattern(256 * 1024, 3);
    for (const auto* key : {"a", "b", "c", "d"}) CHECK(peer.put({{key, value}}).at(0) == Code::kOk);
    const auto matched = decode_matched(
        peer.call(Opcode::kMatch, encode(MatchRequest{.lease_ms = 60'000, .keys = {"a", "b"}}))
            .body);
    REQUIRE(matched);
    CHECK(matched->blocks == 2);
    for (int i = 0; i < 20; ++i) {
      CHECK(peer.put({{"k" + std::to_string(i), value}}).at(0) == Code::kOk);
    }
    CHECK(peer.codes(Opcode::kExists, {"a", "b", "c"}) ==
          Codes{Code::kOk, Code::kOk, Code::kMissing});
    const LeaseRequest release{.lease_ms = 0, .lease_ids = {matched->lease_id, 99}};
    CHECK(decode_result(peer.call(Opcode::kLease, encode(release)).body)->outcomes ==
          Codes{Code::kOk, Code::kLeaseExpired});
    CHECK(harness.store().counters().pins == 0);
  });
}

TEST_CASE("namespaces do not see each other") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto one = harness.connect(true, "one");
    auto other = harness.connect(true, "other");
    one.put({{"k", "value"}});
    CHECK(one.codes(Opcode::kExists, {"k"}) == Codes{Code::kOk});
    CHECK(other.codes(Opcode::kExists, {"k"}) == Codes{Code::kMissing});
    CHECK(other.codes(Opcode::kErase, {"k"}) == Codes{Code::kMissing});
    CHECK(one.codes(Opcode::kErase, {"k"}) == Codes{Code::kOk});
  });
}

TEST_CASE("a lease ends by itself, or with the session that took it") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    peer.put({{"k", "value"}});
    const auto lease = [](std::uint32_t ms) {
      return encode(MatchRequest{.lease_ms = ms, .group = 1, .keys = {"k"}});
    };
    const auto id = decode_matched(peer.call(Opcode::kMatch, lease(50)).body)->lease_id;
    CHECK(harness.eventually([&] { return harness.leases().count() == 0; }));
    auto request = whole({"k", "gone"}, 5);
    request.lease_id = id;
    CHECK(peer.get(request).outcomes == Codes{Code::kOk, Code::kLeaseExpired});
    CHECK(decode_matched(peer.call(Opcode::kMatch, lease(60'000)).body)->lease_id != 0);
    CHECK(harness.leases().count() == 1);
    peer.hang_up();
    CHECK(harness.eventually([&] { return harness.leases().count() == 0; }));
  });
}

TEST_CASE("STATS and PING are answered") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    CHECK(peer.call(Opcode::kPing, {}).header.opcode == Opcode::kResult);
    const auto counters = decode_counters(peer.call(Opcode::kStats, {}).body);
    REQUIRE(counters);
    CHECK(counters->counters == std::vector<Counter>{{"answer", 42}});
  });
}

TEST_CASE("nothing is heard before HELLO, and no second one") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto early = harness.connect(false);
    early.send(Opcode::kPing, {});
    CHECK(end_of(early) == Code::kProtocol);
    auto twice = harness.connect();
    CHECK(twice.hello().header.opcode == Opcode::kError);
    CHECK(harness.sessions_are(0));
    CHECK(harness.worker().metrics().protocol_errors.get() == 2);
  });
}

TEST_CASE(
    "HELLO with one namespace more than are kept is refused, and those that are there serve") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    for (std::size_t i = 0; harness.store().intern("n" + std::to_string(i)); ++i) {
    }
    Hello hello;
    hello.nonce = harness.identity().nonce;
    hello.space = "one more";
    auto refused = harness.connect(false);
    refused.send(Opcode::kHello, encode(hello));
    CHECK(end_of(refused) == Code::kOverloaded);
    hello.space = "n7";
    auto known = harness.connect(false);
    CHECK(known.call(Opcode::kHello, encode(hello)).header.opcode == Opcode::kWelcome);
    CHECK(peer.call(Opcode::kPing, {}).header.opcode == Opcode::kResult);
  });
}

TEST_CASE("HELLO is refused for a wrong token, version or nonce") {
  for_each_transport([](auto transport) {
    Harness harness(transport, {.token = "secret"});
    const auto refusal = [&](const Hello& hello) {
      auto peer = harness.connect(false);
      peer.send(Opcode::kHello, encode(hello));
      return end_of(peer);
    };
    Hello right;
    right.token = "secret";
    right.nonce = harness.identity().nonce;
    Hello wrong = right;
    wrong.token = "secreT";
    CHECK(refusal(wrong) == Code::kUnauthorized);
    wrong.token = "";
    CHECK(refusal(wrong) == Code::kUnauthorized);
    wrong = right;
    wrong.version_min = wrong.version_max = 2;
    CHECK(refusal(wrong) == Code::kVersion);
    if (transport == "shm") {
      wrong = right;
      wrong.nonce = {};
      CHECK(refusal(wrong) == Code::kUnauthorized);
    }
    auto peer = harness.connect(false);
    CHECK(peer.hello("", "secret", harness.identity().nonce).header.opcode == Opcode::kWelcome);
  });
}

TEST_CASE("a connection that says nothing ends after two seconds") {
  Harness harness("tcp");
  auto silent = harness.connect(false);
  CHECK(end_of(silent) == Code::kTimeout);
  CHECK(harness.sessions_are(0));
}

TEST_CASE("a peer's bad bytes close its connection only") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto good = harness.connect();
    const auto bad = [&](auto misbehave) {
      auto peer = harness.connect();
      misbehave(peer);
      end_of(peer);
    };
    bad([](Peer& peer) { peer.send_bytes(bytes_of(std::string(100, 'x'))); });
    bad([](Peer& peer) { peer.send_as(0, Opcode::kPing, {}); });
    bad([](Peer& peer) { peer.send(Opcode::kResult, {}); });
    bad([](Peer& peer) { peer.send(Opcode::kPut, Body(3)); });
    bad([](Peer& peer) { peer.send(Opcode::kPing, Body(1)); });
    bad([](Peer& peer) { peer.send(Opcode::kDone, Body(1)); });
    bad([](Peer& peer) { peer.send(Opcode::kFill, Body(3)); });
    bad([](Peer& peer) { peer.send(Opcode::kData, {}, bytes_of("payload")); });
    CHECK(harness.sessions_are(1));
    CHECK(good.put({{"k", "value"}}) == Codes{Code::kOk});
    CHECK(harness.worker().metrics().protocol_errors.get() == 8);
  });
}

TEST_CASE("a client that hangs up in the middle of a frame leaves nothing") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    const auto header = encode_header({.opcode = Opcode::kPut,
                                       .flags = 0,
                                       .request_id = 1,
                                       .body_bytes = 1000,
                                       .payload_bytes = 0},
                                      Body(1000));
    peer.send_bytes(header);
    peer.hang_up();
    CHECK(harness.sessions_are(0));
  });
}

TEST_CASE("GOODBYE ends the session") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    peer.send(Opcode::kGoodbye, {});
    CHECK(end_of(peer) == Code::kOk);
    CHECK(harness.sessions_are(0));
  });
}

TEST_CASE("the welcome over shared memory brings the pool's regions") {
  Harness harness("shm");
  auto peer = harness.connect(false);
  const auto frame = peer.hello("", "", harness.identity().nonce);
  const auto welcome = decode_welcome(frame.body);
  REQUIRE(welcome);
  CHECK((welcome->capabilities & Welcome::kSharedMemory) != 0);
  CHECK(welcome->region_bytes.size() == frame.fds.size());
  CHECK_FALSE(frame.fds.empty());
  Harness plain("tcp");
  auto other = plain.connect(false);
  const auto tcp = other.hello();
  CHECK(decode_welcome(tcp.body)->region_bytes.empty());
  CHECK(tcp.fds.empty());
}

TEST_CASE("draining: what has begun ends, nothing new begins") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    const auto put = peer.begin_put({{"k", "value"}});
    harness.context().is_draining = true;
    harness.worker().drain();
    CHECK(harness.worker().is_busy());
    const auto refused = peer.call(Opcode::kGet, encode(whole({"k"}, 5)));
    CHECK(decode_error(refused.body)->code == Code::kDraining);
    peer.send_fill(put);
    CHECK(peer.result() == Codes{Code::kOk});
    CHECK(harness.eventually([&] { return !harness.worker().is_busy(); }));
    harness.worker().stop();
    CHECK(end_of(peer) == Code::kDraining);
  });
}

}  // namespace infinistore
