// What a reader calls damaged: dropped if it is, left alone if it is not.

#include <doctest/doctest.h>

#include "core/server/session/session_testing.h"

namespace infinistore {
namespace {

using testing::for_each_transport;
using testing::Harness;
using testing::Peer;
using Codes = std::vector<Code>;

void damage(Harness& harness, std::string_view key, std::uint64_t at) {
  const auto lease = harness.store().find_quietly(0, key);
  REQUIRE(lease);
  std::uint64_t start = 0;
  for (const auto& extent : lease->extents()) {
    if (at >= start && at < start + extent.bytes) {
      harness.store().pool().bytes_of(extent)[at - start] ^= std::byte{0x40};
    }
    start += extent.bytes;
  }
}

GetRequest range_of(std::vector<std::string_view> keys, std::uint64_t offset, std::uint64_t bytes) {
  GetRequest request;
  request.keys = std::move(keys);
  request.ranges.items = {{0, offset, bytes}};
  return request;
}

}  // namespace

TEST_CASE("a damaged value that a reader reports is dropped and counted, its neighbours stay") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    const std::string value(50'000, 'v');
    peer.put({{"a", value}, {"b", value}, {"c", value}});
    damage(harness, "b", 49'999);
    CHECK(peer.codes(Opcode::kSuspect, {"a", "b", "c", "gone"}) ==
          Codes{Code::kOk, Code::kCorrupt, Code::kOk, Code::kMissing});
    CHECK(peer.codes(Opcode::kExists, {"a", "b", "c"}) ==
          Codes{Code::kOk, Code::kMissing, Code::kOk});
    CHECK(harness.store().counters().corrupt == 1);
    CHECK(harness.store().counters().erased == 0);
    CHECK(peer.put({{"b", value}}) == Codes{Code::kOk});  // a new write cures it
    CHECK(peer.get(range_of({"b"}, 0, value.size())).found.at(0) == value);
  });
}

TEST_CASE("a false report of damage drops nothing, and is counted") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    peer.put({{"k", std::string(50'000, 'v')}, {"half", std::string(100, 'h'), 200, 0}});
    for (int i = 0; i < 3; ++i) {
      CHECK(peer.codes(Opcode::kSuspect, {"k", "half"}) == Codes{Code::kOk, Code::kMissing});
    }
    CHECK(peer.codes(Opcode::kExists, {"k"}) == Codes{Code::kOk});
    CHECK(harness.worker().metrics().false_alarms.get() == 3);
    CHECK(harness.store().counters().corrupt == 0);
    CHECK(peer.put({{"half", std::string(100, 'h'), 200, 100}}) == Codes{Code::kOk});
  });
}

TEST_CASE("a late report of a damaged value does not drop what has taken its place") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    peer.put({{"k", "old value"}});
    damage(harness, "k", 3);
    peer.put({{"k", "new value"}}, OnExists::kReplace);
    CHECK(peer.codes(Opcode::kSuspect, {"k"}) == Codes{Code::kOk});
    CHECK(peer.get(range_of({"k"}, 0, 9)).found.at(0) == "new value");
  });
}

TEST_CASE("another's report does not reach into a namespace") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto mine = harness.connect();
    auto other = harness.connect(true, "other");
    mine.put({{"k", "value"}});
    damage(harness, "k", 1);
    CHECK(other.codes(Opcode::kSuspect, {"k"}) == Codes{Code::kMissing});
    CHECK(mine.codes(Opcode::kSuspect, {"k"}) == Codes{Code::kCorrupt});
  });
}

TEST_CASE("a damaged value under a lease is dropped, its bytes go with the lease") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    peer.put({{"k", std::string(5'000, 'v')}});
    const auto matched = decode_matched(
        peer.call(Opcode::kMatch, encode(MatchRequest{.lease_ms = 60'000, .keys = {"k"}})).body);
    REQUIRE(matched);
    damage(harness, "k", 77);
    CHECK(peer.codes(Opcode::kSuspect, {"k"}) == Codes{Code::kCorrupt});
    auto read = range_of({"k"}, 0, 5'000);
    read.lease_id = matched->lease_id;
    CHECK(peer.get(read).outcomes == Codes{Code::kMissing});
    CHECK(harness.store().counters().sealed_bytes > 0);
    peer.call(Opcode::kLease,
              encode(LeaseRequest{.lease_ms = 0, .lease_ids = {matched->lease_id}}));
    CHECK(harness.store().counters().sealed_bytes == 0);
  });
}

TEST_CASE("a value that was staged in ranges is looked at as a whole") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    peer.put({{"k", std::string(1'003, 'a'), 3'000, 0}});
    CHECK(peer.put({{"k", std::string(1'997, 'b'), 3'000, 1'003}}) == Codes{Code::kOk});
    CHECK(peer.codes(Opcode::kSuspect, {"k"}) == Codes{Code::kOk});
    damage(harness, "k", 2'000);
    // The first range is right, and is read: the damage is elsewhere.
    CHECK(peer.get(range_of({"k"}, 0, 1'003)).outcomes == Codes{Code::kOk});
    CHECK(peer.codes(Opcode::kSuspect, {"k"}) == Codes{Code::kCorrupt});
    CHECK(peer.get(range_of({"k"}, 0, 1'003)).outcomes == Codes{Code::kMissing});
  });
}

TEST_CASE("in a get of many keys a range that is no union of put ranges drops the damaged only") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    const std::string value(5'000, 'v');
    peer.put({{"a", value}, {"b", value}, {"c", value}});
    damage(harness, "b", 4'999);  // outside of what is read: it cannot be told from it
    const auto got = peer.get(range_of({"a", "b", "c"}, 3, 11));
    CHECK(got.outcomes == Codes{Code::kOk, Code::kMissing, Code::kOk});
    CHECK(got.found == std::vector<std::string>(2, std::string(11, 'v')));
    CHECK(harness.store().counters().corrupt == 1);
    CHECK(harness.store().counters().keys == 2);
  });
}

TEST_CASE("a report of much is looked at in slices, between which others are served") {
  Harness harness("tcp", {.pool_bytes = 128u << 20});
  auto peer = harness.connect();
  auto other = harness.connect();
  const std::string value(20u << 20, 'v');
  for (const auto* key : {"a", "b", "c"}) REQUIRE(peer.put({{key, value}}) == Codes{Code::kOk});
  damage(harness, "c", value.size() - 1);
  const auto suspected =
      peer.send(Opcode::kSuspect, encode(KeysRequest{.keys = {"a", "b", "c", "a", "b", "c"}}));
  const auto second = peer.send(Opcode::kSuspect, encode(KeysRequest{.keys = {"c"}}));
  CHECK(other.call(Opcode::kPing, {}).header.opcode == Opcode::kResult);
  const auto first = peer.receive();
  REQUIRE(first);
  CHECK(first->header.request_id == suspected);
  CHECK(decode_result(first->body)->outcomes ==
        Codes{Code::kOk, Code::kOk, Code::kCorrupt, Code::kOk, Code::kOk, Code::kMissing});
  const auto last = peer.receive();
  REQUIRE(last);
  CHECK(last->header.request_id == second);
  CHECK(decode_result(last->body)->outcomes == Codes{Code::kMissing});
}

TEST_CASE("a client that ends in the middle of its reports leaves nothing held") {
  for_each_transport([](auto transport) {
    Harness harness(transport, {.pool_bytes = 64u << 20});
    auto peer = harness.connect();
    const std::string value(20u << 20, 'v');
    peer.put({{"k", value}});
    for (int i = 0; i < 10; ++i) {
      peer.send(Opcode::kSuspect, encode(KeysRequest{.keys = {"k", "k", "k", "k"}}));
    }
    peer.hang_up();
    CHECK(harness.sessions_are(0));
    CHECK(harness.store().erase(0, "k"));
    CHECK(harness.store().counters().sealed_bytes == 0);
  });
}

}  // namespace infinistore
