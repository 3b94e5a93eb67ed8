#include "core/server/session/gets.h"

#include <doctest/doctest.h>

#include "core/server/session/session_testing.h"

namespace infinistore {
namespace {

using testing::for_each_transport;
using testing::Harness;
using testing::Peer;
using Codes = std::vector<Code>;

GetRequest waiting(std::vector<std::string_view> keys, std::uint32_t wait_ms) {
  GetRequest request;
  request.wait_ms = wait_ms;
  request.keys = std::move(keys);
  request.ranges.items = {{0, 0, 5}};
  return request;
}

}  // namespace

TEST_CASE("a get waits for keys that are being written, and only for those") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto writer = harness.connect();
    auto reader = harness.connect();
    writer.put({{"there", "12345"}});
    CHECK(reader.get(waiting({"gone"}, 60'000)).outcomes == Codes{Code::kMissing});
    const auto a = writer.begin_put({{"a", "aaaaa"}});
    const auto b = writer.begin_put({{"b", "bbbbb"}});
    reader.send(Opcode::kGet, encode(waiting({"a", "there", "gone", "b", "a"}, 60'000)));
    CHECK(harness.eventually([&] { return harness.waits().count() == 3; }));
    writer.send_fill(b);
    CHECK(writer.result() == Codes{Code::kOk});
    CHECK(harness.waits().count() == 2);
    writer.send_fill(a);
    const auto got = reader.read_data();
    CHECK(got.outcomes == Codes{Code::kOk, Code::kOk, Code::kMissing, Code::kOk, Code::kOk});
    CHECK(got.found == std::vector<std::string>{"aaaaa", "12345", "bbbbb", "aaaaa"});
    CHECK(writer.result() == Codes{Code::kOk});
  });
}

TEST_CASE("a get waits no longer than it asked") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto writer = harness.connect();
    auto reader = harness.connect();
    writer.put({{"there", "12345"}});
    const auto put = writer.begin_put({{"k", "value"}});
    const MonotonicClock clock;
    const Nanos start = clock.now();
    CHECK(reader.get(waiting({"k", "there"}, 60)).outcomes == Codes{Code::kMissing, Code::kOk});
    CHECK(clock.now() - start >= 60 * kMillisecond);
    CHECK(harness.waits().count() == 0);
    writer.send_fill(put);
    CHECK(writer.result() == Codes{Code::kOk});
    CHECK(reader.get(waiting({"k"}, 60)).found.at(0) == "value");
  });
}

TEST_CASE("a writer that gives up wakes those who wait; another writer keeps them waiting") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto writer = harness.connect();
    auto other = harness.connect();
    auto reader = harness.connect();
    const auto first = writer.begin_put({{"k", "first"}});
    const auto second = other.begin_put({{"k", "other"}});
    reader.send(Opcode::kGet, encode(waiting({"k"}, 60'000)));
    CHECK(harness.eventually([&] { return harness.waits().count() == 1; }));
    writer.send_cancel(first);
    CHECK(writer.result() == Codes{Code::kCancelled});
    CHECK(harness.eventually([&] { return harness.waits().count() == 1; }));
    if (transport == "shm") {
      other.send_cancel(second);
    } else {
      other.hang_up();
    }
    CHECK(reader.read_data().outcomes == Codes{Code::kMissing});
  });
}

TEST_CASE("a reader that hangs up while it waits leaves nothing") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto writer = harness.connect();
    auto reader = harness.connect();
    const auto put = writer.begin_put({{"k", "value"}});
    reader.send(Opcode::kGet, encode(waiting({"k", "k"}, 60'000)));
    CHECK(harness.eventually([&] { return harness.waits().count() == 2; }));
    reader.hang_up();
    CHECK(harness.eventually([&] { return harness.waits().count() == 0; }));
    writer.send_fill(put);
    CHECK(writer.result() == Codes{Code::kOk});
  });
}

TEST_CASE("draining answers those who wait") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto writer = harness.connect();
    auto reader = harness.connect();
    const auto put = writer.begin_put({{"k", "value"}});
    reader.send(Opcode::kGet, encode(waiting({"k"}, 60'000)));
    CHECK(harness.eventually([&] { return harness.waits().count() == 1; }));
    harness.worker().drain();
    CHECK(reader.read_data().outcomes == Codes{Code::kMissing});
    writer.send_fill(put);
    CHECK(writer.result() == Codes{Code::kOk});
  });
}

TEST_CASE("a value that is being read stays, whatever happens to its key") {
  Harness harness("shm");
  auto peer = harness.connect();
  auto other = harness.connect();
  peer.put({{"k", "value"}});
  const auto id = peer.send(Opcode::kGet, encode(waiting({"k"}, 0)));
  CHECK(peer.read_data(false).found.at(0) == "value");
  CHECK(harness.store().counters().pins == 1);
  CHECK(other.codes(Opcode::kErase, {"k"}) == Codes{Code::kOk});
  CHECK(harness.store().counters().sealed_bytes == kPageBytesMin);  // erased, yet there
  peer.send_as(id, Opcode::kDone, {});
  peer.send_as(id, Opcode::kDone, {});  // late
  CHECK(harness.eventually([&] { return harness.store().counters().sealed_bytes == 0; }));
  peer.call(Opcode::kPing, {});
  CHECK(harness.worker().metrics().late_messages.get() == 1);
}

TEST_CASE("few bytes come in the frame itself, and pin nothing; more only where they must") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    const std::string half(8 * 1024, 'h');
    peer.put({{"a", half}, {"b", half}, {"c", "c"}});
    GetRequest request;
    for (const bool is_few : {true, false}) {
      request.keys = {"a", "gone", "b"};
      request.ranges.items = {{0, 0, half.size()}};
      if (!is_few) request.keys.push_back("a");  // over 16 KiB
      const auto found = std::vector<std::string>(is_few ? 2 : 3, half);
      for (const std::uint16_t flags : {std::uint16_t{0}, kFlagGetTakesCopy}) {
        CHECK(peer.get(request, flags).found == found);
        const auto id = peer.send(Opcode::kGet, encode(request), {}, flags);
        CHECK(peer.read_data(false).found == found);
        peer.call(Opcode::kPing, {});  // over TCP what was sent is let go behind the bytes
        const bool is_copied = !peer.shares_memory() || (is_few && flags != 0);
        CHECK(harness.store().counters().pins == (is_copied ? 0 : found.size()));
        if (!is_copied) peer.send_as(id, Opcode::kDone, {});
        peer.call(Opcode::kPing, {});
        CHECK(harness.store().counters().pins == 0);
      }
    }
    CHECK(harness.worker().metrics().sent_bytes.get() == 2 * 2 * 5 * half.size());
    CHECK(harness.worker().metrics().late_messages.get() == 0);
  });
}

TEST_CASE("a peer that asks for copies and never reads them is bounded, and parted from") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto bystander = harness.connect();
    auto peer = harness.connect();
    const std::string value(16 * 1024, 'v');
    peer.put({{"k", value}});
    GetRequest request;
    request.keys = {"k"};
    request.ranges.items = {{0, 0, value.size()}};
    // Until the answers fill what may be queued; what is sent after the end goes nowhere.
    for (std::size_t i = 0; i < 2 * kSendQueueBytesMax / value.size(); ++i) {
      if (harness.worker().metrics().sessions.load() == 1) break;
      peer.send(Opcode::kGet, encode(request), {}, kFlagGetTakesCopy);
    }
    CHECK(harness.sessions_are(1));
    CHECK(harness.store().counters().pins == 0);
    CHECK(bystander.get(request, kFlagGetTakesCopy).found.at(0) == value);
  });
}

TEST_CASE("a corrupt value is dropped and reported as missing") {
  for_each_transport([](auto transport) {
    Harness harness(transport);
    auto peer = harness.connect();
    peer.put({{"k", std::string(1000, 'x')}});
    {
      const auto lease = harness.store().find(0, "k");
      REQUIRE(lease);
      harness.store().pool().bytes_of(lease->extents().front())[500] = std::byte{0};
    }
    auto inner = waiting({"k"}, 0);
    inner.ranges.items = {{0, 3, 10}};  // no union of put ranges: the server looks at the bytes
    CHECK(peer.get(inner).outcomes == Codes{Code::kMissing});
    CHECK(peer.codes(Opcode::kExists, {"k"}) == Codes{Code::kMissing});
    CHECK(harness.store().counters().corrupt == 1);
  });
}

TEST_CASE("what does not fit one DATA is overloaded, and comes when it is asked for alone") {
  Harness harness("shm", {.pool_bytes = 64u << 20});
  auto peer = harness.connect();
  // A pool full of holes: a value then has so many extents that few fit a body.
  std::vector<Peer::Item> pages;
  for (int i = 0; i < 4096; ++i) pages.push_back({"p" + std::to_string(i), "page"});
  std::vector<std::vector<Peer::Item>> batches;
  for (int batch = 0; batch < 4; ++batch) {
    for (auto& page : pages) page.key = std::to_string(batch) + page.key;
    peer.put(pages);
  }
  std::vector<std::string_view> odd;
  const auto all = harness.store().counters().keys;
  CHECK(all > 16'000);
  std::vector<std::string> names;
  for (int i = 1; i < 4096; i += 2) names.push_back("0p" + std::to_string(i));
  for (const auto& name : names) odd.push_back(name);
  peer.codes(Opcode::kErase, odd);
  const std::string value(8u << 20, 'v');
  CHECK(peer.put({{"scattered", value}}) == Codes{Code::kOk});
  GetRequest request;
  request.keys.assign(200, "scattered");
  request.ranges.items = {{0, 0, value.size()}};
  const auto got = peer.get(request);
  CHECK(got.outcomes.front() == Code::kOk);
  CHECK(got.outcomes.back() == Code::kOverloaded);
  CHECK(peer.get(waiting({"scattered"}, 0)).found.at(0) == "vvvvv");
}

TEST_CASE("a reader that never reads is parted from, and its pins go") {
  Harness harness("tcp", {.pool_bytes = 64u << 20, .stage_timeout_s = 1});
  auto peer = harness.connect();
  auto other = harness.connect();
  const std::string value(2u << 20, 'v');
  CHECK(peer.put({{"k", value}}) == Codes{Code::kOk});
  GetRequest request;
  request.keys = {"k"};
  request.ranges.items = {{0, 0, value.size()}};
  for (int i = 0; i < 20; ++i) peer.send(Opcode::kGet, encode(request));
  CHECK(harness.eventually([&] { return harness.store().counters().pins > 0; }));
  CHECK(other.get(request).found.at(0) == value);  // others are served meanwhile
  CHECK(harness.sessions_are(1));
  CHECK(harness.store().counters().pins == 0);
}

TEST_CASE("answers that nobody reads end the connection before they fill the memory") {
  Harness harness("tcp");
  harness.context().counters = [] {
    return std::vector<Counter>(4000, {.name = std::string(250, 'n'), .value = 1});
  };
  auto peer = harness.connect();
  for (int i = 0; i < 200 && harness.worker().metrics().sessions.load() == 1; ++i) {
    peer.send(Opcode::kStats, {});
  }
  CHECK(harness.sessions_are(0));
}

}  // namespace infinistore
