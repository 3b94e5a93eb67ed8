// Callers in their channel's place: lone small requests, sent and awaited by who asks.
#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "core/client/client_fixture.h"

namespace infinistore {
namespace {

// Answers PING, after `delay` at every 16th.
FakeServer::Script pings(Nanos delay) {
  return [delay](FakePeer& peer) {
    for (int count = 0; const auto frame = peer.next(); ++count) {
      if (count % 16 == 15) std::this_thread::sleep_for(std::chrono::nanoseconds(delay));
      peer.send(Opcode::kResult, frame->header.request_id, encode(ResultReply{}));
    }
  };
}

TEST_CASE("callers on many threads get each their answer, some at the socket, some not") {
  const FakeServer server(pings(kMillisecond));
  const auto client = connect_to(server);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = 0; i < 300; ++i) {
        Call call(CallSpec{});
        client->submit(call);
        if (caller == 3 && i % 3 == 0) client->cancel(call);
        // One of them never waits at the socket.
        const bool is_done = caller == 2 ? call.wait(5 * kSecond) : client->wait(call, 5 * kSecond);
        const Code code = call.failure().code;
        if (!is_done || (code != Code::kOk && (caller != 3 || code != Code::kCancelled))) ++wrong;
      }
    });
  }
  for (auto& caller : callers) caller.join();
  CHECK(wrong == 0);
  CHECK(server.connections() == 1);
}

TEST_CASE("an answer that comes late is not missed, nor one that nobody waits for") {
  for (const Nanos delay : {Nanos{0}, 5 * kMillisecond}) {
    const FakeServer server([delay](FakePeer& peer) {
      peer.answer_all([delay] {
        std::this_thread::sleep_for(std::chrono::nanoseconds(delay));
        return true;
      });
    });
    const auto client = connect_to(server);
    for (int i = 0; i < 20; ++i) {
      Call waits(CallSpec{});
      client->submit(waits);
      CHECK(client->wait(waits, 5 * kSecond));
      CHECK(waits.failure().code == Code::kOk);
      Call looks(CallSpec{});
      client->submit(looks);
      const Nanos until = kClock.now() + 5 * kSecond;
      while (!looks.is_done() && kClock.now() < until) std::this_thread::yield();
      CHECK(looks.failure().code == Code::kOk);
      client->post(CallSpec{});
    }
    CHECK(server.connections() == 1);
  }
}

TEST_CASE("a silent server is given up in time, whoever sent the request, waiting or not") {
  for (const bool waits : {true, false}) {
    for (const bool is_warm : {true, false}) {
      CAPTURE(waits);
      CAPTURE(is_warm);
      std::atomic<bool> is_silent{false};
      const FakeServer server([&](FakePeer& peer) {
        while (const auto frame = peer.next()) {
          if (is_silent) continue;
          peer.send(Opcode::kResult, frame->header.request_id, encode(ResultReply{}));
        }
      });
      const auto client = connect_to(server);
      if (is_warm) {
        Call first(CallSpec{});
        client->submit(first);
        REQUIRE(client->wait(first, 5 * kSecond));
      } else {
        // Until the thread sleeps for good.
        std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      }
      is_silent = true;
      Call call(CallSpec{});
      client->submit(call);
      CHECK((waits ? client->wait(call, 5 * kSecond) : call.wait(5 * kSecond)));
      CHECK(call.failure().code == Code::kTimeout);
      is_silent = false;
      Call next(CallSpec{});
      client->submit(next);
      REQUIRE(client->wait(next, 5 * kSecond));
      CHECK(next.failure().code == Code::kOk);
    }
  }
}

TEST_CASE("a connection that is lost ends a lone request, whether its caller waits there or not") {
  std::atomic<int> calls{0};
  const FakeServer server([&](FakePeer& peer) {
    peer.answer_all([&] { return ++calls % 2 == 0; });  // else closes
  });
  const auto client = connect_to(server);
  for (int i = 0; i < 10; ++i) {
    Call lost(CallSpec{});
    client->submit(lost);
    // At the socket, or nowhere: then the thread finds the end when it looks again.
    REQUIRE((i % 2 == 0 ? client->wait(lost, 5 * kSecond) : lost.wait(5 * kSecond)));
    CHECK(lost.failure().code == Code::kDisconnected);
    Call found(CallSpec{});
    client->submit(found);
    REQUIRE(client->wait(found, 5 * kSecond));
    CHECK(found.failure().code == Code::kOk);
  }
}

TEST_CASE("a client closes while callers have just sent") {
  for (int i = 0; i < 20; ++i) {
    const FakeServer server(pings(0));
    const auto client = connect_to(server);
    Call call(CallSpec{});
    client->submit(call);
    client->close();
    CHECK(call.wait(kSecond));
  }
}

}  // namespace
}  // namespace infinistore
