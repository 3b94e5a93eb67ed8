#include "core/client/client.h"

#include <doctest/doctest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "core/base/checksum.h"
#include "core/client/client_fixture.h"
#include "core/transport/tcp/client_dial.h"

namespace infinistore {
namespace {

TEST_CASE("a put over tcp is PUT, FILL with sums behind the bytes, and the outcomes of RESULT") {
  Memory memory(3);
  std::optional<PutRequest> put;
  Body payload;
  Body asked;
  const FakeServer server([&](FakePeer& peer) {
    auto frame = peer.next();
    asked = frame->body;
    put = decode_put(asked);
    peer.send(Opcode::kGrant, frame->header.request_id,
              encode(GrantReply{{Code::kOk, Code::kExists, Code::kOk}, {}}));
    frame = peer.next();
    CHECK(decode_fill(frame->body, false)->granted_count == 2);
    payload = frame->payload;
    peer.send(Opcode::kResult, frame->header.request_id,
              encode(ResultReply{{Code::kOk, Code::kExists, Code::kAborted}}));
    CHECK(peer.next()->header.opcode == Opcode::kGoodbye);
  });
  Batch batch(memory.spec(Verb::kPut));
  auto client = connect_to(server);
  client->submit(batch);
  REQUIRE(batch.wait(5 * kSecond));
  CHECK(batch.outcomes == std::vector<Code>{Code::kOk, Code::kExists, Code::kAborted});
  client->close();
  CHECK(put->keys == std::vector<std::string_view>{"key0", "key1", "key2"});
  CHECK(put->ranges.items == std::vector<WireRange>{{kBlock, 0, kBlock}});
  REQUIRE(payload.size() == 2 * kBlock + 16);
  CHECK(std::memcmp(payload.data(), memory.block(0).data(), kBlock) == 0);
  CHECK(std::memcmp(payload.data() + kBlock, memory.block(2).data(), kBlock) == 0);
  std::array<std::uint64_t, 2> sums{};
  std::memcpy(sums.data(), payload.data() + 2 * kBlock, 16);
  CHECK(sums == std::array{checksum(memory.block(0), 0), checksum(memory.block(2), 0)});
}

TEST_CASE(
    "a get verifies what it places, and reports damaged values, which the server then looks at") {
  const Memory source(3);
  std::vector<std::string> reported;
  const FakeServer server([&](FakePeer& peer) {
    auto frame = peer.next();
    DataReply data;
    data.outcomes = {Code::kOk, Code::kMissing, Code::kOk};
    data.found = {{kBlock, kBlock, checksum(source.block(0), 0)},
                  {kBlock, kBlock, checksum(source.block(2), 0) + 1}};
    Body payload(source.block(0).begin(), source.block(0).end());
    payload.insert(payload.end(), source.block(2).begin(), source.block(2).end());
    peer.send(Opcode::kData, frame->header.request_id, encode(data), payload);
    frame = peer.next();
    CHECK(frame->header.opcode == Opcode::kSuspect);
    const auto suspects = decode_keys(frame->body);
    for (const auto key : suspects->keys) reported.emplace_back(key);
    peer.send(Opcode::kResult, frame->header.request_id, encode(ResultReply{{Code::kOk}}));
    peer.next();
  });
  Memory target(3);
  const auto before = target.bytes;
  std::fill_n(target.bytes.begin(), kBlock, std::byte{0});
  Batch batch(target.spec(Verb::kGet));
  {
    const auto client = connect_to(server);
    client->submit(batch);
    REQUIRE(batch.wait(5 * kSecond));
    CHECK(client->counters().corrupt == 1);
    Call ping(CallSpec{});  // behind the SUSPECT
    client->submit(ping);
    ping.wait(5 * kSecond);
  }
  CHECK(batch.outcomes == std::vector<Code>{Code::kOk, Code::kMissing, Code::kCorrupt});
  CHECK(std::ranges::equal(target.block(0), source.block(0)));
  CHECK(std::ranges::equal(target.block(1), Bytes(before).subspan(kBlock, kBlock)));
  CHECK(reported == std::vector<std::string>{"key2"});
}

TEST_CASE("over shared memory a put copies into the extents and tells the sums") {
  Memory memory(2);
  const std::vector<Extents> extents = {{{0, 4096, 4096}, {0, 65536, kBlock - 4096}},
                                        {{0, 12288, kBlock}}};
  std::vector<std::uint64_t> sums;
  FakeServer server(
      [&](FakePeer& peer) {
        if (!peer.shares_memory()) return;
        const auto put = peer.next();
        peer.send(Opcode::kGrant, put->header.request_id,
                  encode(GrantReply{all(2, Code::kOk), extents}));
        const auto fill = peer.next();
        sums = decode_fill(fill->body, true)->checksums;
        peer.send(Opcode::kResult, put->header.request_id, encode(ResultReply{all(2, Code::kOk)}));
        const auto get = peer.next();
        DataReply data;
        data.outcomes = all(2, Code::kOk);
        for (const auto sum : sums) data.found.push_back({kBlock, kBlock, sum});
        data.extents = extents;
        peer.send(Opcode::kData, get->header.request_id, encode(data));
        CHECK(peer.next()->header.opcode == Opcode::kDone);
        peer.next();
      },
      1 << 20);
  Batch batch(memory.spec(Verb::kPut));
  Memory target(2);
  std::ranges::fill(target.bytes, std::byte{0});
  Batch back(target.spec(Verb::kGet));
  {
    const auto client = connect_to(server, TransportChoice::kAuto);
    CHECK(client->server().shares_memory);
    client->submit(batch);
    REQUIRE(batch.wait(5 * kSecond));
    client->submit(back);
    REQUIRE(back.wait(5 * kSecond));
  }
  CHECK(batch.outcomes == all(2, Code::kOk));
  CHECK(sums == std::vector{checksum(memory.block(0), 0), checksum(memory.block(1), 0)});
  const auto pool = server.pool();
  CHECK(std::memcmp(pool.data() + 65536, memory.block(0).data() + 4096, kBlock - 4096) == 0);
  CHECK(back.outcomes == all(2, Code::kOk));
  CHECK(target.bytes == memory.bytes);
}

TEST_CASE("only so many bulk requests are in flight, and calls overtake them") {
  std::atomic<int> gets{0};
  std::atomic<int> gets_before_call{0};
  const FakeServer server([&](FakePeer& peer) {
    while (const auto frame = peer.next()) {
      if (frame->header.opcode == Opcode::kGet) {
        ++gets;
      } else {
        gets_before_call = gets.load();
        peer.send(Opcode::kResult, frame->header.request_id, encode(ResultReply{}));
      }
    }
  });
  Memory memory(16 * 10);  // 16 keys a request
  Batch batch(memory.spec(Verb::kGet));
  Call ping(CallSpec{});
  const auto client = connect_to(server);
  client->submit(batch);
  client->submit(ping);
  REQUIRE(ping.wait(5 * kSecond));
  CHECK(ping.failure().code == Code::kOk);
  CHECK(gets_before_call <= 4);
  client->cancel(batch);
  REQUIRE(batch.wait(5 * kSecond));
  CHECK(batch.outcomes == all(160, Code::kCancelled));
}

TEST_CASE("what was cancelled is refused when it is granted, found or leased") {
  std::atomic<bool> may_answer{false};
  std::atomic<bool> has_answered{false};
  bool was_cancelled = false;
  std::vector<std::uint64_t> released;
  const FakeServer server([&](FakePeer& peer) {
    std::map<Opcode, std::uint64_t> asked;  // in any order: calls overtake
    while (asked.size() < 3) {
      const auto frame = peer.next();
      if (!frame) return;
      asked[frame->header.opcode] = frame->header.request_id;
    }
    while (!may_answer) std::this_thread::yield();
    peer.send(Opcode::kGrant, asked[Opcode::kPut], encode(GrantReply{all(1, Code::kOk), {}}));
    const auto fill = peer.next();
    was_cancelled = fill->header.flags == kFlagFillCancelled && fill->payload.empty();
    peer.send(Opcode::kResult, asked[Opcode::kPut], encode(ResultReply{{Code::kCancelled}}));
    peer.send(Opcode::kData, asked[Opcode::kGet], data_reply(1), Body(kBlock, std::byte{1}));
    peer.send(Opcode::kMatched, asked[Opcode::kMatch], encode(MatchedReply{1, 99}));
    const auto release = peer.next();
    released = decode_lease(release->body)->lease_ids;
    peer.send(Opcode::kResult, release->header.request_id, encode(ResultReply{{Code::kOk}}));
    has_answered = true;
    const auto ping = peer.next();
    peer.send(Opcode::kResult, ping->header.request_id, encode(ResultReply{}));
    peer.next();
  });
  Memory memory(1);
  const auto before = memory.bytes;
  const auto client = connect_to(server);
  Batch put(memory.spec(Verb::kPut));
  client->submit(put);
  Batch get(memory.spec(Verb::kGet));
  client->submit(get);
  CallSpec spec;
  spec.opcode = Opcode::kMatch;
  spec.keys.add("key");
  spec.lease_ms = 1000;
  Call match(std::move(spec));
  client->submit(match);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  for (const Operation* operation : {static_cast<Operation*>(&put), static_cast<Operation*>(&get),
                                     static_cast<Operation*>(&match)}) {
    client->cancel(*operation);
  }
  REQUIRE(put.wait(5 * kSecond));
  REQUIRE(get.wait(5 * kSecond));
  REQUIRE(match.wait(5 * kSecond));
  may_answer = true;
  while (!has_answered && client->counters().disconnects == 0) std::this_thread::yield();
  Call ping(CallSpec{});
  client->submit(ping);
  REQUIRE(ping.wait(5 * kSecond));
  CHECK(ping.failure().code == Code::kOk);
  CHECK(was_cancelled);
  CHECK(released == std::vector<std::uint64_t>{99});
  CHECK(memory.bytes == before);
}

TEST_CASE("who waits awake near the end is not told of an end before there is one") {
  Batch batch(BatchSpec{});
  batch.begin(1, 4, nullptr, nullptr, true);
  CHECK_FALSE(batch.wait(kMillisecond));
  batch.end_part(nullptr);
  batch.end_part(nullptr);
  CHECK_FALSE(batch.wait(kMillisecond));  // awake
  CHECK_FALSE(batch.wait(kMillisecond));  // as any other
  std::thread peer([&batch] {
    batch.end_part(nullptr);
    batch.end_part(nullptr);
  });
  CHECK(batch.wait(-1));
  peer.join();
  Batch nothing(BatchSpec{});
  nothing.begin(2, 0, nullptr, nullptr, true);
  CHECK(nothing.wait(0));
}

TEST_CASE("a thread that was roused answers as ever, and sees an end") {
  std::atomic<int> asked = 0;
  const FakeServer server([&](FakePeer& peer) {
    while (const auto frame = peer.next()) {
      if (++asked == 4) continue;  // what roused it the second time
      if (asked == 5) return;
      peer.send(Opcode::kResult, frame->header.request_id, encode(ResultReply{}));
    }
  });
  const auto client = connect_to(server);
  const auto code_of_call = [&] {
    Call call(CallSpec{});
    client->submit(call);
    REQUIRE(call.wait(5 * kSecond));
    return call.failure().code;
  };
  client->rouse();
  CHECK(code_of_call() == Code::kOk);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it sleeps again
  CHECK(code_of_call() == Code::kOk);
  client->rouse();
  CHECK(code_of_call() != Code::kOk);
}

TEST_CASE("completions wake their reader once, and tell each end once") {
  const FakeServer server([](FakePeer& peer) {
    while (const auto frame = peer.next()) {
      peer.send(Opcode::kResult, frame->header.request_id, encode(ResultReply{}));
    }
  });
  const auto client = connect_to(server);
  auto& completions = client->completions();
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<std::uint64_t> expected;
  for (int i = 0; i < 100; ++i) {
    calls.push_back(std::make_unique<Call>(CallSpec{}));
    client->submit(*calls.back());
    expected.push_back(calls.back()->id());
  }
  std::vector<std::uint64_t> told;
  while (told.size() < 100) {
    REQUIRE(wait_ready(completions.fd(), POLLIN,
                       std::chrono::steady_clock::now() + std::chrono::seconds(5)));
    const auto some = completions.take();
    told.insert(told.end(), some.begin(), some.end());
  }
  CHECK(completions.take().empty());
  std::ranges::sort(told);
  CHECK(told == expected);
}

TEST_CASE("a put that finds the server full for a moment is asked again, in bounds") {
  std::atomic<int> asked{0};
  const auto script = [&](int overloads) {
    return [&asked, overloads](FakePeer& peer) {
      while (const auto frame = peer.next()) {
        if (frame->header.opcode != Opcode::kPut) continue;
        const auto count = decode_put(frame->body)->keys.size();
        const auto code = asked++ < overloads ? Code::kOverloaded : Code::kExists;
        auto outcomes = all(count, code);
        if (count == 3) outcomes[1] = Code::kExists;
        peer.send(Opcode::kGrant, frame->header.request_id, encode(GrantReply{outcomes, {}}));
        peer.send(Opcode::kResult, frame->header.request_id, encode(ResultReply{outcomes}));
      }
    };
  };
  CHECK(run(script(3), Verb::kPut) == all(3, Code::kExists));
  CHECK(asked == 4);
  asked = 0;
  CHECK(run(script(1000), Verb::kPut) ==
        std::vector<Code>{Code::kOverloaded, Code::kExists, Code::kOverloaded});
  CHECK(asked == 8);
}

}  // namespace
}  // namespace infinistore
