#include "core/transport/tcp/client_link.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "core/base/checksum.h"

namespace infinistore {
namespace {

constexpr std::size_t kSumBytes = sizeof(std::uint64_t);

// Items of the caller's memory, of segments of different lengths, apart from each other.
struct Memory {
  struct Shape {
    std::size_t segments;
    std::size_t segment_bytes;
  };

  Memory(const std::vector<Shape>& shapes, std::mt19937_64& random) {
    std::uint64_t position = 0;
    for (const auto& shape : shapes) {
      auto& item = items.emplace_back();
      auto& at = addresses.emplace_back();
      for (std::size_t i = 0; i < shape.segments; ++i) {
        auto& bytes = segments.emplace_back(shape.segment_bytes);
        for (auto& byte : bytes) byte = static_cast<std::byte>(random());
        at.push_back(reinterpret_cast<std::uint64_t>(bytes.data()));
      }
      item = {.addresses = at, .segment_bytes = shape.segment_bytes, .position = position};
      position += 8;
    }
  }
  std::vector<std::byte> bytes_of(std::size_t index) const {
    std::vector<std::byte> all;
    for (std::size_t i = 0; i < items[index].addresses.size(); ++i) {
      const auto segment = items[index].segment(i);
      all.insert(all.end(), segment.begin(), segment.end());
    }
    return all;
  }
  std::uint64_t sum_of(std::size_t index) const {
    return checksum(bytes_of(index), items[index].position);
  }

  std::vector<std::vector<std::byte>> segments;
  std::vector<std::vector<std::uint64_t>> addresses;
  std::vector<Segments> items;
};

// The client's stream and link at one end of a pair of sockets, the test's bare hands at the other.
struct Pair final : StreamOwner {
  explicit Pair(int send_buffer_bytes = 0) {
    std::array<int, 2> fds{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) == 0);
    if (send_buffer_bytes > 0) {
      for (const int fd : fds) {
        ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer_bytes, sizeof send_buffer_bytes);
      }
    }
    far = UniqueFd(fds[1]);
    stream = std::make_unique<Stream>(UniqueFd(fds[0]), poller, *this);
    link = make_tcp_link(*stream, true, poller);
  }

  Payload* on_frame(const FrameHeader&, Bytes) override {
    REQUIRE(link->receive(transfer));
    return transfer.payload.get();
  }
  void on_payload(const FrameHeader&) override { ++received; }
  void on_sent(std::uint64_t) override { ++sent; }
  void on_close(const Error& reason) override { FAIL(reason.message); }

  // What has come to the other end, at most `most` bytes.
  std::vector<std::byte> read(std::size_t most) const {
    std::vector<std::byte> bytes(most);
    const auto got = ::read(far.get(), bytes.data(), most);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }
  // How many of `bytes` the socket took.
  std::size_t write(Bytes bytes) const {
    const auto put = ::send(far.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return put > 0 ? static_cast<std::size_t>(put) : 0;
  }

  Poller poller;
  UniqueFd far;
  Transfer transfer;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Link> link;
  int received = 0;
  int sent = 0;
};

// More segments than one call names, more bytes than one call moves, and odd ends.
std::vector<Memory::Shape> many_shapes() {
  return {{1, 1}, {3, 7}, {600, 9}, {1, 4096}, {2, 700'001}, {5, 70'000}, {1, 8}, {40, 4096}};
}

std::size_t next_step(std::mt19937_64& random) {
  return 1 + random() % (random() % 4 != 0 ? 60 : 9000);
}

void append(std::vector<std::byte>& to, Bytes bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace

TEST_CASE("a fill arrives whole and with its sums, however little the socket takes at once") {
  std::mt19937_64 random(1);
  const Memory memory(many_shapes(), random);
  Pair pair(4096);
  pair.transfer.request_id = 5;
  pair.transfer.items = memory.items;
  std::vector<std::byte> expected;
  for (std::size_t i = 0; i < memory.items.size(); ++i) append(expected, memory.bytes_of(i));
  for (std::size_t i = 0; i < memory.items.size(); ++i) {
    const std::array<std::uint64_t, 1> sum{memory.sum_of(i)};
    append(expected, std::as_bytes(std::span(sum)));
  }

  REQUIRE(pair.link->fill(pair.transfer));
  std::vector<std::byte> came;
  while (pair.sent == 0) {
    pair.poller.poll(0);
    append(came, pair.read(next_step(random)));
    REQUIRE(came.size() < expected.size() + 2 * kHeaderBytes);
  }
  for (auto rest = pair.read(1 << 20); !rest.empty(); rest = pair.read(1 << 20)) append(came, rest);

  const auto header = decode_header(Bytes(came).first(kHeaderBytes));
  REQUIRE(header);
  CHECK(header->opcode == Opcode::kFill);
  CHECK(header->payload_bytes == expected.size());
  const auto payload = Bytes(came).subspan(kHeaderBytes + header->body_bytes);
  REQUIRE(payload.size() == expected.size());
  CHECK(std::equal(payload.begin(), payload.end(), expected.begin()));
}

TEST_CASE("a small fill leaves with its sums in one call") {
  std::mt19937_64 random(2);
  const Memory memory({{1, 4096}}, random);
  Pair pair;
  pair.transfer.items = memory.items;
  pair.transfer.request_id = 1;
  REQUIRE(pair.link->fill(pair.transfer));
  pair.poller.poll(0);
  CHECK(pair.sent == 1);
  const auto came = pair.read(1 << 20);
  CHECK(came.size() == kHeaderBytes + sizeof(std::uint32_t) + 4096 + kSumBytes);
}

TEST_CASE("what is received lies in its segments and is checked, wherever it is cut") {
  std::mt19937_64 random(3);
  const Memory from(many_shapes(), random);
  Memory to(many_shapes(), random);
  Pair pair;
  pair.transfer.items = to.items;
  constexpr std::size_t kWrong = 4;
  std::vector<std::byte> frame;
  std::vector<std::byte> payload;
  for (std::size_t i = 0; i < from.items.size(); ++i) {
    append(payload, from.bytes_of(i));
    pair.transfer.checksums.push_back(from.sum_of(i) + (i == kWrong ? 1 : 0));
  }
  append(frame, encode_header({.opcode = Opcode::kData,
                               .flags = 0,
                               .request_id = 1,
                               .body_bytes = 0,
                               .payload_bytes = payload.size()},
                              {}));
  append(frame, payload);

  for (std::size_t at = 0; at < frame.size();) {
    const std::size_t step = std::min(next_step(random), frame.size() - at);
    at += pair.write(Bytes(frame).subspan(at, step));
    if (random() % 3 == 0) pair.poller.poll(0);  // else more than one piece waits
  }
  for (int i = 0; i < 100 && pair.received == 0; ++i) pair.poller.poll(0);

  REQUIRE(pair.received == 1);
  for (std::size_t i = 0; i < from.items.size(); ++i) {
    CAPTURE(i);
    CHECK(to.bytes_of(i) == from.bytes_of(i));
    CHECK(pair.transfer.is_corrupt[i] == (i == kWrong));
  }
}

}  // namespace infinistore
