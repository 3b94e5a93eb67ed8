#include "core/wire/frame.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>

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
  auto bytes = encode_header(fill_header());
  std::memcpy(bytes.data() + offset, &value, sizeof value);
  return bytes;
}

}  // namespace

TEST_CASE("a header comes back as it went") {
  const auto header = fill_header();
  const auto back = decode_header(encode_header(header));
  REQUIRE(back);
  CHECK(*back == header);
}

TEST_CASE("a header lies on the wire as docs/protocol.md says") {
  const auto bytes = encode_header(fill_header());
  CHECK(std::memcmp(bytes.data(),
                    "IFS1\x01\x05\x01\x00\x88\x77\x66\x55\x44\x33\x22\x11"
                    "\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x00",
                    kHeaderBytes) == 0);
}

TEST_CASE("a header that breaks a bound is refused") {
  CHECK(decode_header(with<std::uint8_t>(0, 'X')) == std::nullopt);  // magic
  CHECK(decode_header(with<std::uint8_t>(4, 2)) == std::nullopt);    // version
  CHECK(decode_header(with<std::uint8_t>(5, 0)) == std::nullopt);    // opcode
  CHECK(decode_header(with<std::uint8_t>(5, kOpcodeLast + 1)) == std::nullopt);
  CHECK(decode_header(with<std::uint16_t>(6, 2)) == std::nullopt);  // flags
  CHECK(decode_header(with<std::uint32_t>(16, kBodyBytesMax + 1)) == std::nullopt);
  CHECK(decode_header(with<std::uint32_t>(20, 1)) == std::nullopt);  // zero
  CHECK(decode_header(with<std::uint64_t>(24, kPayloadBytesMax + 1)) == std::nullopt);
  CHECK(decode_header(with<std::uint8_t>(5, 20)) == std::nullopt);  // PING has flags and payload
  const auto whole = encode_header(fill_header());
  for (std::size_t size = 0; size < kHeaderBytes; ++size) {
    CHECK(decode_header(Bytes(whole).first(size)) == std::nullopt);
  }
}

TEST_CASE("random headers never pass a bound") {
  std::mt19937_64 random(1);
  std::size_t passed = 0;
  for (int i = 0; i < 100'000; ++i) {
    auto bytes = encode_header(fill_header());
    for (int change = 0; change < 3; ++change) {
      bytes[4 + random() % (kHeaderBytes - 4)] = static_cast<std::byte>(random());
    }
    const auto header = decode_header(bytes);
    if (!header) continue;
    ++passed;
    REQUIRE(header->body_bytes <= kBodyBytesMax);
    REQUIRE(header->payload_bytes <= kPayloadBytesMax);
    REQUIRE(encode_header(*header) == bytes);
  }
  CHECK(passed > 0);
}

}  // namespace infinistore
