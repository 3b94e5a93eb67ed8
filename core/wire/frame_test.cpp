#include "core/wire/frame.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace infinistore {
namespace {

FrameHeader fill_header() {
  return {.opcode = Opcode::kFill,
          .flags = kFlagFillCancelled,
          .request_id = 0x1122334455667788,
          .body_bytes = 4,
          .payload_bytes = kPayloadBytesMax};
}

template <class T>
std::array<std::byte, kHeaderBytes> with(std::size_t offset, T value) {
  auto bytes = encode_header(fill_header(), {});
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  return bytes;
}

}  // namespace

TEST_CASE("a header comes back as it went") {
  const auto header = fill_header();
  const auto back = decode_header(encode_header(header, {}));
  REQUIRE(back);
  CHECK(*back == header);
}

TEST_CASE("a header lies on the wire as docs/protocol.md says") {
  const std::vector<std::byte> body = {std::byte{2}, std::byte{0}, std::byte{0}, std::byte{0}};
  const auto bytes = encode_header(fill_header(), body);
  CHECK(std::memcmp(bytes.data(),
                    "IFS1\x01\x05\x01\x00\x88\x77\x66\x55\x44\x33\x22\x11"
                    "\x04\x00\x00\x00\x9c\x35\x36\x95\x00\x00\x00\x40\x00\x00\x00\x00",
                    kHeaderBytes) == 0);
}

TEST_CASE("no bit of a frame's header and body can change unseen") {
  std::mt19937_64 random(2);
  for (const std::size_t size : {0u, 1u, 4u, 7u, 8u, 63u, 64u, 200u, 255u, 256u, 300u}) {
    CAPTURE(size);
    std::vector<std::byte> body(size);
    for (auto& byte : body) byte = static_cast<std::byte>(random());
    auto header = fill_header();
    header.body_bytes = static_cast<std::uint32_t>(size);
    const auto raw = encode_header(header, body);
    REQUIRE(is_intact(raw, body));
    for (std::size_t bit = 0; bit < 8 * (kHeaderBytes + size); ++bit) {
      CAPTURE(bit);
      auto other_raw = raw;
      auto other_body = body;
      auto& byte = bit / 8 < kHeaderBytes ? other_raw[bit / 8] : other_body[bit / 8 - kHeaderBytes];
      byte ^= static_cast<std::byte>(1u << bit % 8);
      CHECK_FALSE(is_intact(other_raw, other_body));
    }
  }
}

TEST_CASE("words of a body that change places are seen, and so is a body of another frame") {
  const auto header = fill_header();
  std::vector<std::byte> one(64);
  for (std::size_t i = 0; i < one.size(); ++i) one[i] = static_cast<std::byte>(i);
  std::vector<std::byte> other = one;
  std::swap_ranges(other.begin(), other.begin() + 8, other.begin() + 32);
  const auto raw = encode_header(header, one);
  CHECK_FALSE(is_intact(raw, other));
  CHECK_FALSE(is_intact(raw, Bytes(one).first(32)));
  CHECK_FALSE(is_intact(Bytes(raw).first(31), one));
}

TEST_CASE("a header that breaks a bound is refused") {
  CHECK(decode_header(with<std::uint8_t>(0, 'X')) == std::nullopt);  // magic
  CHECK(decode_header(with<std::uint8_t>(4, 2)) == std::nullopt);    // version
  CHECK(decode_header(with<std::uint8_t>(5, 0)) == std::nullopt);    // opcode
  CHECK(decode_header(with<std::uint8_t>(5, kOpcodeLast + 1)) == std::nullopt);
  CHECK(decode_header(with<std::uint16_t>(6, 4)) == std::nullopt);  // flags
  CHECK(decode_header(with<std::uint32_t>(16, kBodyBytesMax + 1)) == std::nullopt);
  CHECK(decode_header(with<std::uint64_t>(24, kPayloadBytesMax + 1)) == std::nullopt);
  CHECK(decode_header(with<std::uint8_t>(5, 20)) == std::nullopt);  // PING has flags and payload
  const auto whole = encode_header(fill_header(), {});
  for (std::size_t size = 0; size < kHeaderBytes; ++size) {
    CHECK(decode_header(Bytes(whole).first(size)) == std::nullopt);
  }
}

TEST_CASE("HELLO has one flag") {
  const auto hello = [](std::uint16_t flags) {
    return decode_header(encode_header(
        {.opcode = Opcode::kHello, .flags = flags, .request_id = 1, .body_bytes = 0}, {}));
  };
  CHECK(hello(kFlagHelloReadOnly).has_value());
  CHECK_FALSE(hello(2).has_value());
}

TEST_CASE("random headers never pass a bound") {
  std::mt19937_64 random(1);
  std::size_t passed = 0;
  for (int i = 0; i < 100'000; ++i) {
    auto bytes = encode_header(fill_header(), {});
    for (int change = 0; change < 3; ++change) {
      bytes[4 + random() % (kHeaderBytes - 4)] = static_cast<std::byte>(random());
    }
    const auto header = decode_header(bytes);
    if (!header) continue;
    ++passed;
    REQUIRE(header->body_bytes <= kBodyBytesMax);
    REQUIRE(header->payload_bytes <= kPayloadBytesMax);
    REQUIRE(decode_header(encode_header(*header, {})) == header);
  }
  CHECK(passed > 0);
}

}  // namespace infinistore
