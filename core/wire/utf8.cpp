#include "core/wire/utf8.h"

#include <cstddef>
#include <cstdint>

namespace infinistore {
namespace {

// What may follow a first byte: how many bytes, and which the next one may be (table 3-7).
struct Sequence {
  std::size_t bytes;  // 0: none begins so
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF;
};

Sequence sequence_of(std::uint8_t first) noexcept {
  if (first < 0x80) return {.bytes = 1};
  if (first < 0xC2) return {.bytes = 0};
  if (first < 0xE0) return {.bytes = 2};
  if (first == 0xE0) return {.bytes = 3, .low = 0xA0};
  if (first == 0xED) return {.bytes = 3, .high = 0x9F};
  if (first < 0xF0) return {.bytes = 3};
  if (first == 0xF0) return {.bytes = 4, .low = 0x90};
  if (first < 0xF4) return {.bytes = 4};
  if (first == 0xF4) return {.bytes = 4, .high = 0x8F};
  return {.bytes = 0};
}

}  // namespace

bool is_utf8(std::string_view text) noexcept {
  const auto at = [text](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  for (std::size_t begin = 0; begin < text.size();) {
    const Sequence sequence = sequence_of(at(begin));
    if (sequence.bytes == 0 || sequence.bytes > text.size() - begin) return false;
    for (std::size_t i = 1; i < sequence.bytes; ++i) {
      const std::uint8_t low = i == 1 ? sequence.low : 0x80;
      const std::uint8_t high = i == 1 ? sequence.high : 0xBF;
      if (at(begin + i) < low || at(begin + i) > high) return false;
    }
    begin += sequence.bytes;
  }
  return true;
}

}  // namespace infinistore
