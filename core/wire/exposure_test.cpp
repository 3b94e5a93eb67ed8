#include "core/wire/exposure.h"

#include <doctest/doctest.h>

#include <cstring>
#include <random>

namespace infinistore {
namespace {

Endpoint endpoint() {
  Endpoint one{.qp = 0x11223344,
               .psn = 0xABCDEF,
               .lid = 7,
               .mtu = 5,
               .link_layer = 2,
               .reads_max = 16,
               .gid = {}};
  one.gid[15] = std::byte{1};
  return one;
}

Exposure exposure() {
  return {.windows = {{.base = 4096, .bytes = 8192, .keys = {5, 0, 0, 0}},
                      {.base = 65536, .bytes = 100, .keys = {6, 0, 0, 0}}},
          .items = {{.segment_bytes = 64, .segments = 2}, {.segment_bytes = 10, .segments = 1}},
          .addresses = {4096, 8192, 65540}};
}

Bytes tail() {
  static constexpr std::array<std::byte, 3> kTail = {std::byte{1}, std::byte{2}, std::byte{3}};
  return kTail;
}

TEST_CASE("endpoints come back as they were sent") {
  const Endpoints sent = {endpoint(), endpoint()};
  CHECK(decode_endpoints(encode(sent)) == sent);
}

TEST_CASE("endpoints beyond a bound are refused") {
  for (const auto change : {0, 1, 2, 3}) {
    auto one = endpoint();
    if (change == 0) one.psn = 1u << 24;
    if (change == 1) one.mtu = 6;
    if (change == 2) one.mtu = 0;
    if (change == 3) one.link_layer = 0;
    CHECK_FALSE(decode_endpoints(encode(Endpoints{one})));
  }
  auto body = encode(Endpoints{endpoint()});
  body.pop_back();
  CHECK_FALSE(decode_endpoints(body));
  CHECK_FALSE(decode_endpoints(Bytes(body).first(3)));
}

TEST_CASE("an exposure comes back with what stands behind it") {
  const auto sent = exposure();
  const auto body = encode(sent, 1, tail());
  CHECK(body.size() == encoded_bytes(sent, 1) + tail().size());
  const auto read = decode_exposed(body, 1);
  REQUIRE(read);
  CHECK(read->exposure.windows == sent.windows);
  CHECK(read->exposure.items == sent.items);
  CHECK(read->exposure.addresses == sent.addresses);
  CHECK(std::memcmp(read->rest.data(), tail().data(), tail().size()) == 0);
  CHECK_FALSE(decode_exposed(body, 2));  // another number of rails
}

TEST_CASE("an exposure that contradicts itself is refused") {
  for (const auto change : {0, 1, 2, 3, 4}) {
    auto wrong = exposure();
    if (change == 0) wrong.windows[1].base = 5000;  // overlaps
    if (change == 1) wrong.windows[1].bytes = ~std::uint64_t{0};
    if (change == 2) wrong.items[0].segments = 3;  // more than there are addresses
    if (change == 3) wrong.items[1].segment_bytes = 0;
    if (change == 4) wrong.windows.clear();
    CAPTURE(change);
    CHECK_FALSE(decode_exposed(encode(wrong, 1, tail()), 1));
  }
}

TEST_CASE("any bytes are an exposure or none, and nothing beyond them is read") {
  std::mt19937 random(7);
  const auto whole = encode(exposure(), 1, tail());
  for (int round = 0; round < 20'000; ++round) {
    Body body = whole;
    body.resize(random() % (whole.size() + 1));
    for (int flips = 0; flips < 2 && !body.empty(); ++flips) {
      body[random() % body.size()] ^= static_cast<std::byte>(1u << random() % 8);
    }
    const auto read = decode_exposed(body, 1);
    if (read) CHECK(read->exposure.addresses.size() * 8 <= body.size());
    [[maybe_unused]] const auto endpoints = decode_endpoints(body);
  }
}

}  // namespace
}  // namespace infinistore
