#include "core/base/checksum.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

namespace infinistore {
namespace {

std::vector<std::byte> random_bytes(std::size_t size, std::mt19937_64& random) {
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// docs/protocol.md section 6, word by word, in its own arithmetic.
std::uint64_t as_written(Bytes bytes, std::uint64_t position) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::array<std::byte, 8> padded{};
    for (std::size_t i = 0; i < 8 && at + i < bytes.size(); ++i) padded[i] = bytes[at + i];
    std::uint64_t w = 0;
    std::memcpy(&w, padded.data(), 8);
    const std::uint64_t key = (position + at + 1) * 0x9E3779B97F4A7C15ULL;
    const std::uint64_t x = w ^ key;
    sum += (x % (1ULL << 32)) * (x / (1ULL << 32)) + ((w << 32) | (w >> 32));
  }
  return sum;
}

TEST_CASE("every version gives the sum that the protocol defines") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 400; ++round) {
    const std::size_t size = random() % (round < 200 ? 300 : 20'000);
    const std::size_t skew = random() % 70;
    const std::uint64_t position = random() % 3 == 0 ? random() : random() % 10'000;
    const auto memory = random_bytes(size + skew, random);
    const Bytes bytes = Bytes(memory).subspan(skew);
    CAPTURE(size);
    CAPTURE(skew);
    const auto expected = as_written(bytes, position);
    CHECK(checksum_scalar(bytes, position) == expected);
    CHECK(checksum(bytes, position) == expected);
  }
}

TEST_CASE("a copy carries all bytes, only those, and their sum") {
  std::mt19937_64 random(2);
  for (int round = 0; round < 400; ++round) {
    const std::size_t size = random() % (round < 200 ? 300 : 20'000);
    const std::size_t from_skew = random() % 70;
    const std::size_t to_skew = random() % 130;
    const std::uint64_t position = random() % 10'000;
    const auto from = random_bytes(size + from_skew, random);
    const auto before = random_bytes(size + to_skew + 64, random);
    const std::byte* const next = round % 2 == 0 ? nullptr : before.data();
    auto to = before;
    CAPTURE(size);
    CAPTURE(to_skew);
    const auto sum =
        copy_with_checksum(to.data() + to_skew, from.data() + from_skew, size, position, next);
    CHECK(sum == as_written(Bytes(from).subspan(from_skew), position));
    CHECK(
        std::equal(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(to_skew), before.begin()));
    CHECK(std::equal(from.begin() + static_cast<std::ptrdiff_t>(from_skew), from.end(),
                     to.begin() + static_cast<std::ptrdiff_t>(to_skew)));
    const auto end = static_cast<std::ptrdiff_t>(to_skew + size);
    CHECK(std::equal(to.begin() + end, to.end(), before.begin() + end));
  }
}

TEST_CASE("the sums of adjoining parts add up, in any order") {
  std::mt19937_64 random(3);
  const auto bytes = random_bytes(8 * 1000 + 5, random);
  const Bytes all(bytes);
  for (int round = 0; round < 50; ++round) {
    const std::size_t cut = 8 * (random() % 1000);
    const auto late = checksum(all.subspan(cut), 40 + cut);
    CHECK(late + checksum(all.first(cut), 40) == checksum(all, 40));
  }
}

TEST_CASE("pieces of any lengths, added or copied, give the sum of the whole") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    const auto bytes = random_bytes(random() % 12'000, random);
    std::vector<std::byte> copied(bytes.size());
    RunningChecksum adding(77);
    RunningChecksum copying(77);
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t step =
          std::min<std::size_t>(bytes.size() - at, random() % (random() % 4 == 0 ? 5000 : 20));
      adding.add(Bytes(bytes).subspan(at, step));
      copying.copy(copied.data() + at, Bytes(bytes).subspan(at, step));
      at += step;
    }
    CHECK(adding.finish() == checksum(bytes, 77));
    CHECK(copying.finish() == checksum(bytes, 77));
    CHECK(copied == bytes);
  }
}

TEST_CASE("one flipped bit, two swapped words and a moved range are noticed") {
  std::mt19937_64 random(4);
  auto bytes = random_bytes(4096, random);
  const auto sum = checksum(bytes, 0);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const auto mask = static_cast<std::byte>(1U << (bit % 8));
    bytes[bit / 8] ^= mask;
    CHECK_MESSAGE(checksum(bytes, 0) != sum, bit);
    bytes[bit / 8] ^= mask;
  }
  std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.begin() + 64);
  CHECK(checksum(bytes, 0) != sum);
  std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.begin() + 64);
  CHECK(checksum(bytes, 4096) != sum);
  CHECK(checksum(bytes, 0) == sum);
}

TEST_CASE("zeros of different lengths have different sums, nothing has none") {
  const std::vector<std::byte> zeros(4096);
  CHECK(checksum(Bytes(zeros).first(4088), 0) != checksum(zeros, 0));
  CHECK(checksum({}, 7) == 0);
}

}  // namespace
}  // namespace infinistore
