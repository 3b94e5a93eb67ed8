// Fuzzes the stream's cutting of bytes into frames and payloads, however the bytes are cut on their
// way.  What it tells its owner must be what a plain parser finds in the same bytes.
//
// An input is: a byte that seeds the cuts, a byte of choices, then what travels.  Frames get their
// right sums first, unless a choice says that they keep theirs.

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>

#include "core/base/check.h"
#include "core/transport/stream.h"
#include "core/wire/frame.h"
#include "core/wire/message_samples.h"
#include "tests/fuzz/target.h"

namespace infinistore::fuzz {
namespace {

constexpr std::size_t kKeptBytesMax = 16 * 1024;  // longer payloads are thrown away as they come

struct Heard {
  FrameHeader header;
  std::string body;
  std::string payload;  // as far as it came
  bool is_whole = false;

  bool operator==(const Heard&) const = default;
};

bool is_kept(const FrameHeader& header) { return header.payload_bytes <= kKeptBytesMax; }

// What should be heard: all at once, by the page that describes frames.
struct Expected {
  std::vector<Heard> frames;
  bool is_garbage = false;
};

Expected expect(Bytes bytes) {
  Expected found;
  while (bytes.size() >= kHeaderBytes) {
    const auto header = decode_header(bytes.first(kHeaderBytes));
    if (!header) {
      found.is_garbage = true;
      break;
    }
    const auto raw = bytes.first(kHeaderBytes);
    bytes = bytes.subspan(kHeaderBytes);
    if (bytes.size() < header->body_bytes) break;
    if (!is_intact(raw, bytes.first(header->body_bytes))) {
      found.is_garbage = true;
      break;
    }
    auto& frame = found.frames.emplace_back();
    frame.header = *header;
    frame.body = text_of(bytes.first(header->body_bytes));
    bytes = bytes.subspan(header->body_bytes);
    const auto payload = std::min<std::uint64_t>(header->payload_bytes, bytes.size());
    frame.is_whole = payload == header->payload_bytes;
    if (is_kept(*header)) frame.payload = text_of(bytes.first(payload));
    bytes = bytes.subspan(payload);
    if (!frame.is_whole) break;
  }
  return found;
}

// A mutation seldom leaves a frame's sum right: each gets the one it should have.
Input with_sums(Bytes bytes) {
  Input repaired(bytes.begin(), bytes.end());
  for (std::size_t at = 0; repaired.size() - at >= kHeaderBytes;) {
    const auto left = Bytes(repaired).subspan(at);
    const auto header = decode_header(left.first(kHeaderBytes));
    if (!header || left.size() - kHeaderBytes < header->body_bytes) break;
    const auto raw = encode_header(*header, left.subspan(kHeaderBytes, header->body_bytes));
    std::ranges::copy(raw, repaired.begin() + static_cast<std::ptrdiff_t>(at));
    at += kHeaderBytes + header->body_bytes;
    at += std::min<std::uint64_t>(header->payload_bytes, repaired.size() - at);
  }
  return repaired;
}

class Listener final : public StreamOwner {
 public:
  explicit Listener(bool pauses) : pauses_(pauses) {}

  Payload* on_frame(const FrameHeader& header, Bytes body) override {
    KV_CHECK(frames.empty() || frames.back().is_whole);
    frames.push_back({.header = header,
                      .body = std::string(text_of(body)),
                      .payload = {},
                      .is_whole = header.payload_bytes == 0});
    if (pauses_) stream->pause_reading(true);
    if (header.payload_bytes == 0) return nullptr;
    if (!is_kept(header)) return &discard_;
    memory_.assign(header.payload_bytes, std::byte{0});
    place_ = Scatter();
    const std::size_t part = memory_.size() / 3;  // three pieces, some of them empty
    place_.add(memory_.data(), part);
    place_.add(memory_.data() + part, part);
    place_.add(memory_.data() + 2 * part, memory_.size() - 2 * part);
    return &place_;
  }
  void on_garbage(Garbage) override { ++garbage_count; }
  void on_payload(const FrameHeader& header) override {
    KV_CHECK(!frames.empty() && frames.back().header == header && !frames.back().is_whole);
    frames.back().is_whole = true;
    if (is_kept(header)) frames.back().payload = text_of(memory_);
  }
  void on_sent(std::uint64_t) override { KV_CHECK(false); }
  void on_close(const Error& reason) override {
    ++close_count;
    code = reason.code;
  }

  Stream* stream = nullptr;
  std::vector<Heard> frames;
  int garbage_count = 0;
  int close_count = 0;
  Code code = Code::kOk;

 private:
  const bool pauses_;
  std::vector<std::byte> memory_;
  Scatter place_;
  Discard discard_;
};

// The pieces in which the bytes arrive: whole, of one byte, or of any lengths.
class Cuts {
 public:
  Cuts(std::uint8_t seed, std::uint8_t choices) : state_(seed), form_(choices % 3) {}

  std::size_t next(std::size_t left) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    const std::size_t wanted = form_ == 0 ? left : form_ == 1 ? 1 : 1 + (state_ >> 33) % 97;
    ++count_;
    return std::min(count_ < kCountMax ? wanted : left, left);
  }

 private:
  static constexpr std::size_t kCountMax = 32;  // keeps an execution cheap
  std::uint64_t state_;
  std::uint8_t form_;
  std::size_t count_ = 0;
};

// Until nothing is in the socket any more, as a level-triggered poller would have it.
void take_all(Stream& stream) {
  int waiting = 1;
  while (stream.is_open() && waiting > 0) {
    stream.on_ready(EPOLLIN);
    stream.pause_reading(false);
    stream.deliver();
    if (stream.is_open()) KV_CHECK(::ioctl(stream.fd(), FIONREAD, &waiting) == 0);
  }
}

void run(std::uint8_t seed, std::uint8_t choices, Bytes bytes) {
  static Poller poller;
  std::array<int, 2> fds{};
  KV_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) == 0);
  UniqueFd peer(fds[0]);
  Listener listener((choices & 0x80) != 0);
  Stream stream(UniqueFd(fds[1]), poller, listener);
  listener.stream = &stream;
  if ((choices & 0x40) != 0) stream.expect_fds();
  Cuts cuts(seed, choices);
  for (auto left = bytes; !left.empty() && stream.is_open();) {
    const auto step = cuts.next(left.size());
    const auto sent = ::send(peer.get(), left.data(), step, MSG_NOSIGNAL);
    if (sent > 0) left = left.subspan(static_cast<std::size_t>(sent));
    take_all(stream);
  }
  peer.reset();
  for (int turns = 0; stream.is_open(); ++turns) {
    KV_CHECK(turns < 100);  // else it does not see the end
    take_all(stream);
  }
  KV_CHECK(stream.deliver() && listener.close_count == 1);

  auto expected = expect(bytes);
  KV_CHECK(listener.garbage_count == (expected.is_garbage ? 1 : 0));
  KV_CHECK(listener.code == (expected.is_garbage ? Code::kProtocol : Code::kDisconnected));
  // Of a payload that did not come whole nothing is told.
  for (auto& frame : expected.frames) {
    if (!frame.is_whole) frame.payload.clear();
  }
  KV_CHECK(listener.frames == expected.frames);
}

void append(Input& input, Opcode opcode, const Body& body, std::size_t payload_bytes) {
  const auto header = encode_header({.opcode = opcode,
                                     .flags = 0,
                                     .request_id = 7,
                                     .body_bytes = static_cast<std::uint32_t>(body.size()),
                                     .payload_bytes = payload_bytes},
                                    body);
  input.insert(input.end(), header.begin(), header.end());
  input.insert(input.end(), body.begin(), body.end());
  input.resize(input.size() + payload_bytes, std::byte{'v'});
}

}  // namespace

std::vector<Input> seeds() {
  std::vector<Input> all;
  for (const auto choices : {0, 1, 2, 0x22, 0x82, 0xC1}) {
    Input input{std::byte{5}, static_cast<std::byte>(choices)};
    append(input, Opcode::kHello, samples::hello().front(), 0);
    append(input, Opcode::kPut, samples::put().front(), 0);
    append(input, Opcode::kFill, samples::fill(false).back(), 40);
    append(input, Opcode::kPing, {}, 0);
    append(input, Opcode::kData, samples::data(false).back(), 1);
    all.push_back(input);
    input.resize(input.size() - 20);  // the end comes in the middle
    all.push_back(input);
    input.resize(input.size() + 60, std::byte{'G'});
    all.push_back(input);
  }
  return all;
}

}  // namespace infinistore::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  namespace fuzz = infinistore::fuzz;
  const auto bytes = std::as_bytes(std::span(data + 2, size - 2));
  const bool keeps_sums = (data[1] & 0x20) != 0;
  fuzz::run(data[0], data[1], keeps_sums ? bytes : infinistore::Bytes(fuzz::with_sums(bytes)));
  return 0;
}
