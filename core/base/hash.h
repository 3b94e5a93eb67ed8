#pragma once
// The hash of a key: fast, well mixed, the same in every process (channels are chosen by it).

#include <cstdint>
#include <cstring>
#include <string_view>

namespace infinistore {

// Multiply-fold over 8-byte words (the construction of wyhash, Wang Yi 2019); not for attackers:
// tables that hold untrusted keys seed it.
inline std::uint64_t hash_key(std::string_view key, std::uint64_t seed = 0) noexcept {
  constexpr std::uint64_t kA = 0xA0761D6478BD642FULL;
  constexpr std::uint64_t kB = 0xE7037ED1A0B428DBULL;
  const auto fold = [](std::uint64_t x, std::uint64_t y) {
    const auto product = static_cast<unsigned __int128>(x) * y;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  };
  std::uint64_t state = seed ^ kA;
  const char* at = key.data();
  std::size_t left = key.size();
  while (left >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    state = fold(state ^ word, kB ^ state);
    at += 8;
    left -= 8;
  }
  std::uint64_t tail = 0;
  std::memcpy(&tail, at, left);
  return fold(state ^ tail, kB ^ key.size());
}

}  // namespace infinistore
