#include "core/server/session/puts.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "core/server/session/session_testing.h"

namespace infinistore {
namespace {

using testing::for_each_transport;
using testing::Harness;
using testing::HarnessOptions;
using testing::Peer;
using Codes = std::vector<Code>;

constexpr std::uint64_t kLayer = 6000;  // a range that ends in the middle of a page

std::string layer_bytes(int layer) { return std::string(kLayer, static_cast<char>('a' + layer)); }

Peer::Item layer(std::string key, int index, std::uint64_t layers) {
  return {std::move(key), layer_bytes(index), layers * kLayer,
          static_cast<std::uint64_t>(index) * kLayer};
}

GetRequest range_of(std::string_view key, std::uint64_t offset, std::uint64_t bytes) {
  GetRequest request;
  request.keys = {key};
  request.ranges.items = {{0, offset, bytes}};
  return request;
}

}  // namespace

TEST_CASE("a copy is seen once its put is repeated, unless its key was erased meanwhile") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    auto other = harness.connect();
    const std::vector<Peer::Item> copies{{"a", "old a"}, {"b", "old b"}, {"c", "old c"}};
    CHECK(peer.put(copies, OnExists::kCopy) == Codes(3, Code::kOk));
    CHECK(other.codes(Opcode::kExists, {"a", "b", "c"}) == Codes(3, Code::kMissing));
    CHECK(other.codes(Opcode::kErase, {"b"}) == Codes{Code::kMissing});
    CHECK(other.put({{"c", "new c"}}) == Codes{Code::kOk});
    const Codes confirmed{Code::kOk, Code::kAborted, Code::kExists};
    CHECK(peer.put(copies, OnExists::kCopy) == confirmed);
    CHECK(other.codes(Opcode::kExists, {"a", "b", "c"}) ==
          Codes{Code::kOk, Code::kMissing, Code::kOk});
    GetRequest read{.keys = {"a", "c"}, .ranges = {{{5, 0, 5}}}};
    CHECK(other.get(read).found == std::vector<std::string>{"old a", "new c"});
    CHECK(harness.store().counters().staged_values == 0);
  });
}

TEST_CASE("a copy in ranges is seen once one of them is repeated, and not if it is given up") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    const std::vector<Peer::Item> first{{"k", "01234", 10, 0}};
    const std::vector<Peer::Item> second{{"k", "56789", 10, 5}};
    CHECK(peer.put(first, OnExists::kCopy) == Codes{Code::kOk});
    CHECK(peer.put(first, OnExists::kCopy) == Codes{Code::kOk});  // half of it is here
    CHECK(peer.put(second, OnExists::kCopy) == Codes{Code::kOk});
    CHECK(peer.codes(Opcode::kExists, {"k"}) == Codes{Code::kMissing});
    CHECK(peer.put(second, OnExists::kCopy) == Codes{Code::kOk});
    CHECK(peer.codes(Opcode::kExists, {"k"}) == Codes{Code::kOk});
    CHECK(peer.put({{"given up", "x"}}, OnExists::kCopy) == Codes{Code::kOk});
    CHECK(peer.codes(Opcode::kAbort, {"given up"}) == Codes{Code::kOk});
    CHECK(harness.store().counters().staged_values == 0);
  });
}

TEST_CASE("a value written in ranges, in any order, is sealed when it is complete") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    for (const int index : {2, 0}) {
      CHECK(peer.put({layer("k", index, 3), layer("m", index, 3)}) == Codes{Code::kOk, Code::kOk});
      CHECK(peer.codes(Opcode::kExists, {"k"}) == Codes{Code::kMissing});
    }
    CHECK(harness.store().counters().staged_values == 2);
    CHECK(peer.put({layer("k", 1, 3)}) == Codes{Code::kOk});
    CHECK(peer.codes(Opcode::kExists, {"k", "m"}) == Codes{Code::kOk, Code::kMissing});
    CHECK(peer.get(range_of("k", 0, 3 * kLayer)).found.at(0) ==
          layer_bytes(0) + layer_bytes(1) + layer_bytes(2));
    CHECK(peer.get(range_of("k", kLayer, kLayer)).found.at(0) == layer_bytes(1));
    CHECK(peer.get(range_of("k", kLayer - 3, 5)).found.at(0) == "aaabb");
  });
}

TEST_CASE("a range that was filled moves nothing again; one that overlaps is invalid") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    CHECK(peer.put({layer("k", 0, 2)}) == Codes{Code::kOk});
    const auto again = peer.begin_put({layer("k", 0, 2)});
    CHECK(again.grant.outcomes == Codes{Code::kExists});
    CHECK(peer.result() == Codes{Code::kOk});
    CHECK(peer.put({{"k", "xx", 2 * kLayer, kLayer - 1}}) == Codes{Code::kInvalid});
    CHECK(peer.put({{"k", "xx", 3 * kLayer, kLayer}}) == Codes{Code::kSizeMismatch});
    const auto twice = peer.begin_put({layer("k", 1, 2), layer("k", 1, 2)});
    CHECK(twice.grant.outcomes == Codes{Code::kOk, Code::kExists});
    peer.send_fill(twice);
    CHECK(peer.result() == Codes{Code::kOk, Code::kOk});
    CHECK(peer.codes(Opcode::kExists, {"k"}) == Codes{Code::kOk});
  });
}

TEST_CASE("a cancelled fill gives its ranges back") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    const auto put = peer.begin_put({layer("k", 0, 2), {"whole", "value"}, layer("k", 0, 2)});
    CHECK(put.granted.size() == 2);
    peer.send_cancel(put);
    CHECK(peer.result() == Codes{Code::kCancelled, Code::kCancelled, Code::kCancelled});
    CHECK(harness.store().counters().reserved_bytes == 0);
    for (const int index : {0, 1}) CHECK(peer.put({layer("k", index, 2)}) == Codes{Code::kOk});
    CHECK(peer.codes(Opcode::kExists, {"k", "whole"}) == Codes{Code::kOk, Code::kMissing});
  });
}

TEST_CASE("ABORT drops what is staged, also while a range is under way") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    CHECK(peer.put({layer("k", 0, 3)}) == Codes{Code::kOk});
    const auto under_way = peer.begin_put({layer("k", 1, 3)});
    CHECK(peer.codes(Opcode::kAbort, {"k", "other"}) == Codes{Code::kOk, Code::kMissing});
    CHECK(harness.store().counters().reserved_bytes > 0);  // the peer may be writing
    peer.send_fill(under_way);
    CHECK(peer.result() == Codes{Code::kAborted});
    CHECK(harness.store().counters().reserved_bytes == 0);
    CHECK(peer.put({layer("k", 0, 1)}) == Codes{Code::kOk});
    CHECK(peer.get(range_of("k", 0, kLayer)).found.at(0) == layer_bytes(0));
  });
}

TEST_CASE("two writers of one key: the first seal wins, the other hears that it exists") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto one = harness.connect();
    auto other = harness.connect();
    const auto first = one.begin_put({{"k", "one's"}, layer("staged", 0, 2)});
    const auto second = other.begin_put({{"k", "other"}});
    CHECK(other.put({layer("staged", 0, 2)}) == Codes{Code::kOk});
    CHECK(other.put({layer("staged", 1, 2)}) == Codes{Code::kOk});
    other.send_fill(second);
    CHECK(other.result() == Codes{Code::kOk});
    one.send_fill(first);
    CHECK(one.result() == Codes{Code::kExists, Code::kOk});
    // The rest of a value that somebody else has sealed need not travel.
    CHECK(one.put({layer("staged", 1, 2)}) == Codes{Code::kExists});
    CHECK(harness.store().counters().reserved_bytes == 0);
    CHECK(one.get(range_of("k", 0, 5)).found.at(0) == "other");
  });
}

TEST_CASE("staged values without progress are dropped") {
  for_each_transport([](auto transport) {
    Harness harness(transport, {.stage_timeout_s = 0.2});
    auto peer = harness.connect();
    CHECK(peer.put({layer("k", 0, 2)}) == Codes{Code::kOk});
    CHECK(harness.store().counters().reserved_bytes > 0);
    CHECK(harness.eventually([&] { return harness.store().counters().reserved_bytes == 0; }));
    CHECK(peer.call(Opcode::kPing, {}).header.opcode == Opcode::kResult);  // no reason to part
  });
}

TEST_CASE("a range that takes long on a connection that lives holds nobody up") {
  for_each_transport([](auto transport) {
    Harness harness(transport, {.stage_timeout_s = 0.5});
    auto slow = harness.connect();
    auto other = harness.connect();
    const auto put = slow.begin_put({layer("k", 0, 2)});
    for (int step = 0; step < 50; ++step) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      REQUIRE(slow.call(Opcode::kPing, {}).header.opcode == Opcode::kResult);
      REQUIRE(other.call(Opcode::kPing, {}).header.opcode == Opcode::kResult);
    }
    slow.send_fill(put);
    CHECK(slow.result() == Codes{Code::kOk});
    CHECK(slow.put({layer("k", 1, 2)}) == Codes{Code::kOk});
    CHECK(harness.store().exists(harness.store().intern("").value(), "k"));
  });
}

TEST_CASE("a grant that is never filled ends the connection, and its memory is not lost") {
  for_each_transport([](auto transport) {
    Harness harness(transport, {.stage_timeout_s = 0.2});
    auto peer = harness.connect();
    peer.begin_put({{"k", "value"}});
    const auto frame = peer.receive();
    REQUIRE(frame);
    CHECK(decode_error(frame->body)->code == Code::kTimeout);
    CHECK_FALSE(peer.receive());
    CHECK(harness.sessions_are(0));
    CHECK(harness.worker().metrics().stalled_sessions.get() == 1);
    const auto left = harness.store().counters();
    // Over shared memory this very process, alive, may still write.
    CHECK(left.reserved_bytes == 0);
    CHECK((left.quarantined_bytes > 0) == (transport == "shm"));
  });
}

TEST_CASE("what a vanished client had begun is given back at once") {
  for_each_transport([](auto transport) {
    if (transport == "shm") return;  // see below: its process must have ended
    Harness harness(transport);
    auto peer = harness.connect();
    peer.put({layer("staged", 0, 2)});
    const auto put = peer.begin_put({{"k", std::string(100'000, 'x')}});
    const auto fill = encode(FillRequest{.granted_count = 1});
    peer.send_bytes(encode_header({.opcode = Opcode::kFill,
                                   .flags = 0,
                                   .request_id = put.request_id,
                                   .body_bytes = 4,
                                   .payload_bytes = 100'008},
                                  fill));
    peer.send_bytes(fill);
    peer.send_bytes(bytes_of(std::string(50'000, 'x')));
    peer.hang_up();
    CHECK(harness.sessions_are(0));
    CHECK(harness.store().counters().reserved_bytes == 0);
  });
}

TEST_CASE("a fill of another size than was granted breaks the protocol") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    auto put = peer.begin_put({{"k", "value"}, {"m", "value"}});
    put.granted.pop_back();
    peer.send_fill(put);
    const auto frame = peer.receive();
    REQUIRE(frame);
    const auto error = decode_error(frame->body);
    REQUIRE(error);
    CAPTURE(error->message);
    CHECK(error->code == Code::kProtocol);
    CHECK(harness.sessions_are(0));
  });
}

TEST_CASE("a fill that comes late, or of nothing, is ignored and counted") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    const auto put = peer.begin_put({{"k", "value"}});
    peer.send_fill(put);
    CHECK(peer.result() == Codes{Code::kOk});
    peer.send_fill(put);
    peer.send_cancel(put);
    CHECK(peer.put({{"m", "value"}}) == Codes{Code::kOk});
    CHECK(harness.worker().metrics().late_messages.get() == 2);
    CHECK(peer.get(range_of("k", 0, 5)).found.at(0) == "value");
  });
}

TEST_CASE("more open requests than a session may have are refused, and only they") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    std::vector<Peer::Put> open;
    for (std::size_t i = 0; i < kSessionRequestsMax; ++i) {
      open.push_back(peer.begin_put({{"k" + std::to_string(i), "value"}}));
    }
    PutRequest request{.keys = {"more"}};
    request.ranges.items = {{5, 0, 5}};
    const auto frame = peer.call(Opcode::kPut, encode(request));
    REQUIRE(frame.header.opcode == Opcode::kError);
    CHECK(decode_error(frame.body)->code == Code::kOverloaded);
    peer.send_fill(open.front());
    CHECK(peer.result() == Codes{Code::kOk});
    CHECK(peer.put({{"more", "value"}}) == Codes{Code::kOk});
    for (std::size_t i = 1; i < open.size(); ++i) {
      peer.send_fill(open[i]);
      CHECK(peer.result() == Codes{Code::kOk});
    }
  });
}

TEST_CASE("a purge fences what was begun before it") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    const auto put = peer.begin_put({{"k", "old weights"}});
    harness.store().purge(harness.store().intern("").value());
    peer.send_fill(put);
    CHECK(peer.result() == Codes{Code::kAborted});
    CHECK(peer.codes(Opcode::kExists, {"k"}) == Codes{Code::kMissing});
  });
}

TEST_CASE("a request id that is in use again breaks the protocol") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    const auto put = peer.begin_put({{"k", "value"}});
    peer.send_as(put.request_id, Opcode::kGet, encode(range_of("k", 0, 5)));
    CHECK(decode_error(peer.receive()->body)->code == Code::kProtocol);
    CHECK(harness.sessions_are(0));
  });
}

}  // namespace infinistore
