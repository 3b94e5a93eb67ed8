#include "core/transport/stream.h"

#include <doctest/doctest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <deque>
#include <string>

#include "core/transport/stream_testing.h"

namespace infinistore {

TEST_CASE("a stream that is not watched is served by who calls it, and by the poller again after") {
  Ends ends = Ends::direct();
  ends.one->watch(false);
  std::string bytes(200'000, 'v');
  Scatter from;
  from.add(reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
  CHECK(ends.one->send(Opcode::kData, 1, {}, 0, &from, bytes.size()) == Code::kOk);
  CHECK(ends.other->send(Opcode::kPing, 2, {}) == Code::kOk);
  CHECK(ends.one->interest() == (EPOLLIN | EPOLLOUT));
  for (int i = 0; i < 3; ++i) ends.poller.poll(0);
  CHECK(ends.one_owner.frames.empty());
  CHECK(ends.other_owner.frames.empty());
  ends.one->on_ready(EPOLLIN | EPOLLOUT);
  CHECK(ends.one_owner.frames.size() == 1);
  ends.one->watch(true);
  REQUIRE(ends.until([&] { return ends.other_owner.payload_count == 1; }));
  CHECK(ends.other_owner.payloads.front() == bytes);
  CHECK(ends.one_owner.sent == std::vector<std::uint64_t>{1});
}

TEST_CASE("a stream whose peer has gone says so to who waits in the poller's place") {
  Ends ends = Ends::direct();
  ends.one->watch(false);
  ends.other.reset();
  ends.one->on_ready(EPOLLIN | EPOLLHUP);
  REQUIRE(ends.one_owner.ends.size() == 1);
  CHECK(ends.one_owner.ends.front().code == Code::kDisconnected);
  ends.one->watch(true);  // of no effect
}

TEST_CASE("who parts says all he has queued, hears no more, and ends when his peer does") {
  Ends ends = Ends::direct();
  CHECK(ends.one->send(Opcode::kPing, 1, body_of(std::string(100'000, 'w'))) == Code::kOk);
  ends.one->part_after_sending({Code::kProtocol, "why"});
  CHECK(ends.one->send(Opcode::kPing, 2, {}) == Code::kClosed);
  // Unread bytes of the peer's do not take from it what was said.
  for (int i = 0; i < 50; ++i) CHECK(ends.other->send(Opcode::kPing, 3, {}) == Code::kOk);
  REQUIRE(ends.until([&] { return ends.other_owner.ends.size() == 1; }));
  REQUIRE(ends.other_owner.frames.size() == 1);
  CHECK(ends.other_owner.frames.front().body.size() == 100'000);
  REQUIRE(ends.until([&] { return ends.one_owner.ends.size() == 1; }));
  CHECK(ends.one_owner.ends.front().code == Code::kProtocol);
}

TEST_CASE("frames and payloads of any size arrive in order, however they are cut") {
  for (const std::size_t piece : {1, 33, 4096, 65536}) {
    CAPTURE(piece);
    Loopback::Options options;
    options.to_server.piece_bytes_max = piece;
    Ends ends(options);
    std::deque<std::string> sent;
    std::deque<Scatter> pieces;
    std::uint64_t id = 0;
    for (const std::size_t size : {0, 1, 100, 0, 5000, 3}) {
      ++id;
      CHECK(ends.one->send(Opcode::kPing, id, body_of(std::string(size, 'b'))) == Code::kOk);
      auto& bytes = sent.emplace_back(10 * size + 1, static_cast<char>('a' + id));
      auto& from = pieces.emplace_back();
      from.add(reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
      CHECK(ends.one->send(Opcode::kData, id, {}, 0, &from, bytes.size()) == Code::kOk);
    }
    REQUIRE(ends.until([&] { return ends.other_owner.payload_count == sent.size(); }));
    CHECK(ends.other_owner.payloads == sent);
    REQUIRE(ends.other_owner.frames.size() == 2 * id);
    for (std::uint64_t i = 0; i < 2 * id; ++i) {
      CHECK(ends.other_owner.frames[i].header.request_id == i / 2 + 1);
    }
    CHECK(ends.other_owner.frames[8].body == std::string(5000, 'b'));
    CHECK(ends.one_owner.sent == std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6});
    CHECK(ends.one->moved_bytes() == ends.other->moved_bytes());
    CHECK(ends.one->queued_bytes() == 0);
  }
}

TEST_CASE("a body of the largest size arrives, and the buffer shrinks again") {
  Ends ends;
  const std::string text(kBodyBytesMax, 'x');
  CHECK(ends.one->send(Opcode::kPing, 1, body_of(text)) == Code::kOk);
  CHECK(ends.one->send(Opcode::kPing, 2, body_of("small")) == Code::kOk);
  REQUIRE(ends.until([&] { return ends.other_owner.frames.size() == 2; }));
  CHECK(ends.other_owner.frames[0].body == text);
  CHECK(ends.other_owner.frames[1].body == "small");
}

TEST_CASE("bytes that are no frame end the connection") {
  Ends ends;
  const std::string garbage(64, 'G');
  REQUIRE(::send(ends.one->fd(), garbage.data(), garbage.size(), 0) == 64);
  REQUIRE(ends.until([&] { return !ends.other_owner.ends.empty(); }));
  CHECK(ends.other_owner.ends[0].code == Code::kProtocol);
  REQUIRE(ends.until([&] { return !ends.one_owner.ends.empty(); }));
  CHECK(ends.one_owner.ends[0].code == Code::kDisconnected);
}

TEST_CASE("a payload that the owner refuses ends the connection") {
  Ends ends;
  ends.other_owner.refuses = true;
  std::string bytes = "payload";
  Scatter from;
  from.add(reinterpret_cast<std::byte*>(bytes.data()), bytes.size());
  ends.one->send(Opcode::kData, 1, {}, 0, &from, bytes.size());
  REQUIRE(ends.until([&] { return !ends.other_owner.ends.empty(); }));
  CHECK(ends.other_owner.ends[0].code == Code::kProtocol);
}

TEST_CASE("the end is told once, and never from inside the owner's call") {
  Ends ends;
  ends.one->close({Code::kCancelled, "enough"});
  CHECK(ends.one_owner.ends.empty());
  CHECK(ends.one->send(Opcode::kPing, 1, {}) == Code::kClosed);
  CHECK(ends.one->deliver());
  CHECK(ends.one->deliver());
  ends.one->close({Code::kCancelled, "again"});
  REQUIRE(ends.until([&] { return !ends.other_owner.ends.empty(); }));
  REQUIRE(ends.one_owner.ends.size() == 1);
  CHECK(ends.one_owner.ends[0].message == "enough");
}

TEST_CASE("closed in a callback, a stream hears no more") {
  Ends ends;
  ends.other_owner.on_next_frame = [&] { ends.other->close({Code::kCancelled, "enough"}); };
  for (std::uint64_t id = 1; id <= 3; ++id) ends.one->send(Opcode::kPing, id, {});
  REQUIRE(ends.until([&] { return !ends.other_owner.ends.empty(); }));
  CHECK(ends.other_owner.frames.size() == 1);
  CHECK(ends.other_owner.ends.size() == 1);
}

TEST_CASE("what is queued leaves before a gentle close") {
  Ends ends;
  const std::string large(3u << 20, 'x');  // more than the sockets between take at once
  ends.one->send(Opcode::kPing, 1, body_of(large));
  ends.one->close_after_sending({Code::kDraining, "bye"});
  CHECK(ends.one->send(Opcode::kPing, 2, {}) == Code::kClosed);
  REQUIRE(ends.until([&] { return !ends.other_owner.ends.empty(); }));
  REQUIRE(ends.other_owner.frames.size() == 1);
  CHECK(ends.other_owner.frames[0].body == large);
  REQUIRE(ends.until([&] { return !ends.one_owner.ends.empty(); }));
  CHECK(ends.one_owner.ends[0].code == Code::kDraining);
}

TEST_CASE("a paused stream hears nothing, and everything once it goes on") {
  Ends ends;
  ends.other_owner.on_next_frame = [&] { ends.other->pause_reading(true); };
  for (std::uint64_t id = 1; id <= 3; ++id) ends.one->send(Opcode::kPing, id, {});
  REQUIRE(ends.until([&] { return ends.other_owner.frames.size() == 1; }));
  for (int i = 0; i < 5; ++i) ends.until([] { return true; });
  ends.poller.poll(20 * kMillisecond);
  CHECK(ends.other_owner.frames.size() == 1);
  ends.other->pause_reading(false);
  REQUIRE(ends.until([&] { return ends.other_owner.frames.size() == 3; }));
}

TEST_CASE("what a peer said before its end is heard, though nothing can be said to it any more") {
  Ends ends;
  for (std::uint64_t id = 1; id <= 2; ++id) ends.one->send(Opcode::kPing, id, {});
  ends.one->close({Code::kClosed, "gone"});
  // Nothing has been read yet: the end shows first where it is written to.
  CHECK(ends.other->send(Opcode::kPing, 7, {}) == Code::kOk);
  CHECK(ends.other->send(Opcode::kPing, 8, {}) == Code::kOk);
  REQUIRE(ends.until([&] { return !ends.other_owner.ends.empty(); }));
  CHECK(ends.other_owner.frames.size() == 2);
  CHECK(ends.other_owner.ends[0].code == Code::kDisconnected);
  CHECK(ends.other->send(Opcode::kPing, 9, {}) == Code::kClosed);
}

TEST_CASE("what a peer does not read is bounded") {
  Ends ends;
  ends.other->pause_reading(true);
  Code code = Code::kOk;
  std::uint64_t id = 0;
  while (code == Code::kOk && id < 1000) {
    code = ends.one->send(Opcode::kPing, ++id, body_of(std::string(1u << 20, 'x')));
  }
  CHECK(code == Code::kOverloaded);
  CHECK(ends.one->queued_bytes() <= kSendQueueBytesMax + (1u << 20));
  CHECK(ends.one->is_open());
  ends.other->pause_reading(false);
  REQUIRE(ends.until([&] { return ends.other_owner.frames.size() == id - 1; }));
}

TEST_CASE("descriptors arrive with the frame they were attached to") {
  std::array<int, 2> fds{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) == 0);
  Poller poller;
  Recorder from_owner, to_owner;
  Stream from(UniqueFd(fds[0]), poller, from_owner);
  Stream to(UniqueFd(fds[1]), poller, to_owner);
  to.expect_fds();
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const UniqueFd reader(pipe[0]), writer(pipe[1]);
  from.send(Opcode::kPing, 1, {});
  from.attach_fds({pipe[0], pipe[1]});
  from.send(Opcode::kPing, 2, body_of("with two"));
  from.send(Opcode::kPing, 3, {});
  for (int i = 0; i < 100 && to_owner.frames.size() < 3; ++i) poller.poll(10 * kMillisecond);
  REQUIRE(to_owner.frames.size() == 3);
  const auto got = to.take_fds();
  REQUIRE(got.size() == 2);
  struct stat sent{}, received{};
  REQUIRE(::fstat(pipe[0], &sent) == 0);
  REQUIRE(::fstat(got[0].get(), &received) == 0);
  CHECK(sent.st_ino == received.st_ino);
}

}  // namespace infinistore
