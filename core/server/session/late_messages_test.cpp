// Messages that come late, again, or in another order: they change nothing, and are counted.

#include <doctest/doctest.h>

#include "core/base/checksum.h"
#include "core/server/session/session_testing.h"

namespace infinistore {
namespace {

using testing::for_each_transport;
using testing::Harness;
using testing::Peer;
using Codes = std::vector<Code>;

GetRequest whole(std::string_view key, std::uint64_t bytes) {
  GetRequest request;
  request.keys = {key};
  request.ranges.items = {{0, 0, bytes}};
  return request;
}

std::uint64_t late(Harness& harness) { return harness.worker().metrics().late_messages.get(); }

// FILL by hand, of `text` for one item.
void fill(Peer& peer, std::uint64_t id, std::string_view text, std::uint16_t flags = 0) {
  FillRequest request{.granted_count = 1};
  const std::uint64_t sum = checksum(bytes_of(text), 0);
  std::string payload;
  if (peer.shares_memory()) {
    request.checksums = {sum};
  } else if (flags == 0) {
    payload = std::string(text) + std::string(reinterpret_cast<const char*>(&sum), sizeof sum);
  }
  peer.send_as(id, Opcode::kFill, encode(request), bytes_of(payload), flags);
}

Code end_of(Peer& peer) {
  Code code = Code::kOk;
  while (const auto frame = peer.receive()) {
    if (frame->header.opcode == Opcode::kError) code = decode_error(frame->body)->code;
  }
  return code;
}

}  // namespace

TEST_CASE("a FILL that comes again, cancelled or not, changes nothing and is counted") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    const auto put = peer.begin_put({{"k", "right"}});
    peer.send_fill(put);
    CHECK(peer.result() == Codes{Code::kOk});
    peer.send_fill(put);
    fill(peer, put.request_id, "wrong");
    fill(peer, put.request_id, "wrong", kFlagFillCancelled);
    peer.call(Opcode::kPing, {});
    CHECK(late(harness) == 3);
    CHECK(peer.get(whole("k", 5)).found.at(0) == "right");
  });
}

TEST_CASE("a FILL after its cancelled one finds its pages with another and does not touch them") {
  for_each_transport([](auto transport) {
    Harness harness(transport, {.pool_bytes = 2u << 20});
    auto peer = harness.connect();
    const std::string wrong(512 * 1024, 'w');
    const std::string right(512 * 1024, 'r');
    const auto put = peer.begin_put({{"k", wrong}});
    peer.send_cancel(put);
    CHECK(peer.result() == Codes{Code::kCancelled});
    // The same pages, taken by other keys.
    for (const auto* key : {"a", "b", "c", "d"})
      CHECK(peer.put({{key, right}}) == Codes{Code::kOk});
    fill(peer, put.request_id, peer.shares_memory() ? "" : wrong);
    peer.call(Opcode::kPing, {});
    CHECK(late(harness) == 1);
    CHECK(peer.codes(Opcode::kExists, {"k"}) == Codes{Code::kMissing});
    for (const auto* key : {"a", "b", "c", "d"}) {
      CHECK(peer.get(whole(key, right.size())).found.at(0) == right);
      CHECK(peer.codes(Opcode::kSuspect, {key}) == Codes{Code::kOk});
    }
  });
}

TEST_CASE("a FILL for a value that was aborted meanwhile seals nothing") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    const auto put = peer.begin_put({{"k", "half", 8, 0}});
    CHECK(peer.codes(Opcode::kAbort, {"k"}) == Codes{Code::kOk});
    peer.send_fill(put);
    CHECK(peer.result() == Codes{Code::kAborted});
    peer.send_fill(put);  // once more, and now it is late
    peer.call(Opcode::kPing, {});
    CHECK(late(harness) == 1);
    CHECK(harness.store().counters().reserved_bytes == 0);
  });
}

TEST_CASE("FILL and DONE under ids that never were, or are to come, change nothing") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    peer.put({{"k", "value"}});
    for (const std::uint64_t id : {77, 1, 1'000'000}) {
      fill(peer, id, "text");
      peer.send_as(id, Opcode::kDone, {});
    }
    CHECK(peer.put({{"other", "value"}}) == Codes{Code::kOk});
    CHECK(late(harness) == 6);
    CHECK(harness.store().counters().keys == 2);
    CHECK(harness.store().counters().reserved_bytes == 0);
  });
}

TEST_CASE("a DONE that comes again lets go of no other get's pins") {
  Harness harness("shm");
  auto peer = harness.connect();
  const std::string value(50'000, 'v');
  peer.put({{"k", value}});
  const auto first = peer.send(Opcode::kGet, encode(whole("k", value.size())));
  peer.read_data(false);
  const auto second = peer.send(Opcode::kGet, encode(whole("k", value.size())));
  peer.read_data(false);
  CHECK(harness.store().counters().pins == 2);
  for (int i = 0; i < 3; ++i) peer.send_as(first, Opcode::kDone, {});
  peer.call(Opcode::kPing, {});
  CHECK(harness.store().counters().pins == 1);
  CHECK(late(harness) == 2);
  peer.send_as(second, Opcode::kDone, {});
  peer.call(Opcode::kPing, {});
  CHECK(harness.store().counters().pins == 0);
}

TEST_CASE("words about a put on another connection than its own reach nothing") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto writer = harness.connect();
    auto other = harness.connect();
    const auto put = writer.begin_put({{"k", "right"}});
    fill(other, put.request_id, "wrong");
    fill(other, put.request_id, "wrong", kFlagFillCancelled);
    CHECK(other.codes(Opcode::kAbort, {"k"}) == Codes{Code::kMissing});
    CHECK(late(harness) == 2);
    writer.send_fill(put);
    CHECK(writer.result() == Codes{Code::kOk});
    CHECK(other.get(whole("k", 5)).found.at(0) == "right");
  });
}

TEST_CASE("after a reconnect FILL, DONE, ABORT and a lease's id from before reach nothing") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto before = harness.connect();
    before.put({{"k", "value"}});
    const auto matched = decode_matched(
        before.call(Opcode::kMatch, encode(MatchRequest{.lease_ms = 60'000, .keys = {"k"}})).body);
    const auto staged = before.begin_put({{"half", "half", 8, 0}});
    before.send_fill(staged);
    CHECK(before.result() == Codes{Code::kOk});
    const auto put = before.begin_put({{"late", "value"}});
    before.send(Opcode::kGoodbye, {});
    CHECK(harness.sessions_are(0));
    auto after = harness.connect();
    fill(after, put.request_id, "value");
    after.send_as(put.request_id, Opcode::kDone, {});
    CHECK(after.codes(Opcode::kAbort, {"half", "late"}) == Codes{Code::kMissing, Code::kMissing});
    const LeaseRequest release{.lease_ms = 0, .lease_ids = {matched->lease_id}};
    const LeaseRequest renew{.lease_ms = 1'000, .lease_ids = {matched->lease_id}};
    for (const auto& word : {release, renew, release}) {
      CHECK(decode_result(after.call(Opcode::kLease, encode(word)).body)->outcomes ==
            Codes{Code::kLeaseExpired});
    }
    CHECK(late(harness) == 2);
    CHECK(after.codes(Opcode::kExists, {"k", "late"}) == Codes{Code::kOk, Code::kMissing});
    CHECK(harness.store().counters().reserved_bytes == 0);
  });
}

TEST_CASE("a lease's release that comes again ends no other lease") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    peer.put({{"k", "value"}});
    const auto lease = [&] {
      return decode_matched(
                 peer.call(Opcode::kMatch, encode(MatchRequest{.lease_ms = 60'000, .keys = {"k"}}))
                     .body)
          ->lease_id;
    };
    const auto release = [&](std::uint64_t id) {
      return decode_result(
                 peer.call(Opcode::kLease, encode(LeaseRequest{.lease_ms = 0, .lease_ids = {id}}))
                     .body)
          ->outcomes.front();
    };
    const auto first = lease();
    CHECK(release(first) == Code::kOk);
    const auto second = lease();
    CHECK(second != first);
    CHECK(release(first) == Code::kLeaseExpired);
    CHECK(harness.leases().count() == 1);
    CHECK(release(second) == Code::kOk);
  });
}

TEST_CASE("a request id that is not above all before it ends the connection, whatever it begins") {
  for_each_transport([](auto transport) {
    const auto keys = encode(KeysRequest{.keys = {"k"}});
    PutRequest put{.keys = {"k"}};
    put.ranges.items = {{5, 0, 5}};
    for (const auto& [opcode, body] : std::vector<std::pair<Opcode, Body>>{
             {Opcode::kPut, encode(put)},
             {Opcode::kGet, encode(whole("k", 5))},
             {Opcode::kMatch, encode(MatchRequest{.keys = {"k"}})},
             {Opcode::kExists, keys},
             {Opcode::kErase, keys},
             {Opcode::kAbort, keys},
             {Opcode::kSuspect, keys},
             {Opcode::kLease, encode(LeaseRequest{.lease_ms = 0, .lease_ids = {1}})},
             {Opcode::kPing, {}},
             {Opcode::kStats, {}}}) {
      for (const int back : {0, 1, 5}) {
        CAPTURE(static_cast<int>(opcode));
        CAPTURE(back);
        Harness harness(transport);
        auto peer = harness.connect();
        for (int i = 0; i < 10; ++i) peer.call(Opcode::kPing, {});
        peer.put({{"k", "value"}});
        const auto last = peer.send(Opcode::kPing, {});
        peer.send_as(last - static_cast<std::uint64_t>(back), opcode, body);
        CHECK(end_of(peer) == Code::kProtocol);
        peer.hang_up();  // else the server gives it a while to read why
        CHECK(harness.sessions_are(0));
        CHECK(harness.store().exists(0, "k"));
        CHECK(harness.worker().metrics().protocol_errors.get() == 1);
      }
    }
  });
}

TEST_CASE("a PUT that comes again while its first one is open ends both, and leaves nothing") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    const auto put = peer.begin_put({{"k", "value"}});
    PutRequest again{.keys = {"k"}};
    again.ranges.items = {{5, 0, 5}};
    peer.send_as(put.request_id, Opcode::kPut, encode(again));
    CHECK(end_of(peer) == Code::kProtocol);
    peer.hang_up();
    CHECK(harness.sessions_are(0));
    CHECK_FALSE(harness.store().exists(0, "k"));
  });
}

}  // namespace infinistore
