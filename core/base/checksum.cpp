#include "core/base/checksum.h"

#include <bit>
#include <cstring>

namespace infinistore {
namespace {

constexpr std::uint64_t kKeyStep = 0x9E3779B97F4A7C15ULL;

std::uint64_t term(std::uint64_t word, std::uint64_t key) noexcept {
  const std::uint64_t x = word ^ key;
  return (x & 0xFFFFFFFFU) * (x >> 32) + std::rotl(word, 32);
}

}  // namespace

std::uint64_t checksum_scalar(Bytes bytes, std::uint64_t position) noexcept {
  std::uint64_t sum = 0;
  std::uint64_t key = (position + 1) * kKeyStep;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8, key += 8 * kKeyStep) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    sum += term(word, key);
  }
  if (left > 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, left);
    sum += term(word, key);
  }
  return sum;
}

std::uint64_t checksum(Bytes bytes, std::uint64_t position) noexcept {
  return checksum_scalar(bytes, position);
}

std::uint64_t copy_with_checksum(std::byte* to, const std::byte* from, std::size_t size,
                                 std::uint64_t position) noexcept {
  copy(to, from, size);
  return checksum({to, size}, position);
}

void copy(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  if (size > 0) std::memcpy(to, from, size);
}

}  // namespace infinistore
