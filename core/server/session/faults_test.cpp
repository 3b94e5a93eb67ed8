// Sessions over a connection that fails: whatever goes wrong, nothing is left and others go on.

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <stdexcept>

#include "core/base/checksum.h"
#include "core/server/session/session_testing.h"

namespace infinistore {
namespace {

using testing::for_each_transport;
using testing::Harness;
using testing::Peer;
using Codes = std::vector<Code>;

const std::string kValue(3000, 'v');

// A put, a staged range, a get, a match with a lease: as far as the connection carries it.  Every
// word is sent without waiting for answers, so that the fault alone decides how far it comes.
void converse(Peer& peer, const Nonce& nonce) {
  Hello hello;
  hello.nonce = nonce;
  peer.send_as(1, Opcode::kHello, encode(hello));
  PutRequest put{.keys = {"k", "staged"}};
  put.ranges.items = {{kValue.size(), 0, kValue.size()}, {2 * kValue.size(), 0, kValue.size()}};
  peer.send_as(2, Opcode::kPut, encode(put));
  const std::uint64_t sum = checksum(bytes_of(kValue), 0);
  std::string payload = kValue + kValue;
  for (int i = 0; i < 2; ++i) payload.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  peer.send_as(2, Opcode::kFill, encode(FillRequest{.granted_count = 2}), bytes_of(payload));
  GetRequest get{.keys = {"k", "gone"}};
  get.ranges.items = {{0, 0, kValue.size()}};
  peer.send_as(3, Opcode::kGet, encode(get));
  peer.send_as(4, Opcode::kMatch, encode(MatchRequest{.lease_ms = 60'000, .keys = {"k"}}));
  peer.send_as(5, Opcode::kPing, {});
}

// The answers that came before the end; throws if neither comes.
std::size_t answers(Peer& peer, std::size_t wanted) {
  std::size_t count = 0;
  while (count < wanted && peer.receive()) ++count;
  return count;
}

constexpr std::size_t kAnswers = 6;  // WELCOME, GRANT, RESULT, DATA, MATCHED, RESULT

}  // namespace

TEST_CASE("a conversation in pieces of one byte is understood") {
  Loopback::Options faults;
  faults.to_server.piece_bytes_max = 1;
  faults.to_client.piece_bytes_max = 7;
  Harness harness("loopback", {.faults = faults});
  auto peer = harness.connect(false);
  converse(peer, {});
  CHECK(answers(peer, kAnswers) == kAnswers);
  CHECK(harness.store().exists(0, "k"));
  CHECK(harness.store().counters().staged_values == 1);
}

TEST_CASE("a slow connection is served") {
  Loopback::Options faults;
  faults.to_server.delay = kMillisecond;
  faults.to_client.delay = kMillisecond;
  faults.to_server.piece_bytes_max = 1000;
  Harness harness("loopback", {.faults = faults});
  auto peer = harness.connect(false);
  converse(peer, {});
  CHECK(answers(peer, kAnswers) == kAnswers);
}

TEST_CASE("a connection cut anywhere leaves nothing but what was sealed") {
  for (std::uint64_t at = 1; at < 6600; at += at < 400 ? 13 : 331) {
    CAPTURE(at);
    Loopback::Options faults;
    faults.to_server.cut_at = at;
    Harness harness("loopback", {.pool_bytes = 1u << 20, .faults = faults});
    auto peer = harness.connect(false);
    converse(peer, {});
    CHECK(answers(peer, kAnswers) < kAnswers);
    CHECK(harness.sessions_are(0));
    CHECK(harness.store().counters().reserved_bytes == 0);
    CHECK(harness.leases().count() == 0);
  }
}

TEST_CASE("a reader's connection cut anywhere lets go of what it read") {
  for (std::uint64_t at = 1; at < 3300; at += 131) {
    CAPTURE(at);
    Loopback::Options faults;
    faults.to_client.cut_at = at;
    Harness harness("loopback", {.pool_bytes = 1u << 20, .faults = faults});
    auto peer = harness.connect(false);
    converse(peer, {});
    CHECK(answers(peer, kAnswers) < kAnswers);
    CHECK(harness.sessions_are(0));
    CHECK(harness.store().counters().pins == 0);
  }
}

TEST_CASE("a byte changed anywhere harms only its own connection") {
  Harness harness("loopback", {.pool_bytes = 1u << 20});
  auto bystander = harness.connect();
  for (std::uint64_t at = 0; at < 6700; at += at < 500 ? 1 : 97) {
    CAPTURE(at);
    Loopback::Options faults;
    faults.to_server.corrupt_at = at;
    Loopback carried(faults);
    harness.serve(carried.take_server_end());
    Peer peer(carried.take_client_end(), "loopback", harness.store().pool());
    converse(peer, {});
    // It may wait for bytes that a changed length announced: then it hangs up.
    ::shutdown(peer.fd(), SHUT_WR);
    answers(peer, kAnswers);
    peer.hang_up();
    CHECK(harness.sessions_are(1));
    CHECK(bystander.call(Opcode::kPing, {}).header.opcode == Opcode::kResult);
  }
  CHECK(harness.store().counters().reserved_bytes == 0);
}

TEST_CASE("a refused peer reads why, and is parted from whatever it does then") {
  for_each_transport([](auto transport) {
    for (const std::string_view then : {"ends", "stays", "goes on"}) {
      CAPTURE(then);
      Harness harness(transport);
      auto bystander = harness.connect();
      auto peer = harness.connect();
      peer.begin_put({{"k", "value"}});
      peer.send(Opcode::kPut, Body(3, std::byte{9}));
      for (int i = 0; i < 2000; ++i) peer.send(Opcode::kPing, {});  // nobody wants them any more
      const auto frame = peer.receive();
      REQUIRE(frame);
      REQUIRE(frame->header.opcode == Opcode::kError);
      CHECK(decode_error(frame->body)->code == Code::kProtocol);
      if (then == "ends") peer.hang_up();
      while (then == "goes on" && harness.worker().metrics().sessions.load() > 1) {
        peer.send(Opcode::kPing, {});
      }
      CHECK(harness.sessions_are(1));
      CHECK(harness.worker().metrics().protocol_errors.get() == 1);
      CHECK(harness.store().counters().reserved_bytes == 0);
      CHECK(bystander.call(Opcode::kPing, {}).header.opcode == Opcode::kResult);
    }
  });
}

TEST_CASE("a connection that goes dead in the middle of a payload is given up") {
  Loopback::Options faults;
  faults.to_server.drop_from = 2000;
  Harness harness("loopback", {.stage_timeout_s = 0.2, .faults = faults});
  auto peer = harness.connect(false);
  converse(peer, {});
  CHECK(harness.sessions_are(0));
  CHECK(harness.store().counters().reserved_bytes == 0);
  CHECK(harness.worker().metrics().stalled_sessions.get() == 1);
}

}  // namespace infinistore
