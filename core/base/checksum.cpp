#include "core/base/checksum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace infinistore {
namespace {

constexpr std::uint64_t kKeyStep = 0x9E3779B97F4A7C15ULL;
constexpr std::uint64_t key_at(std::uint64_t position) noexcept {
  return (position + 1) * kKeyStep;
}

std::uint64_t term(std::uint64_t word, std::uint64_t key) noexcept {
  const std::uint64_t x = word ^ key;
  return (x & 0xFFFFFFFFU) * (x >> 32) + std::rotl(word, 32);
}

// Sums whole words and the padded last one, and copies them unless `to` is null.
std::uint64_t sum_words(std::byte* to, const std::byte* from, std::size_t size,
                        std::uint64_t position) noexcept {
  std::uint64_t sum = 0;
  std::uint64_t key = key_at(position);
  std::size_t at = 0;
  // Copies of a known size are single instructions, those of another are calls.
  for (; at + 8 <= size; at += 8, key += 8 * kKeyStep) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + at, 8);
    if (to != nullptr) std::memcpy(to + at, &word, 8);
    sum += term(word, key);
  }
  if (at < size) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + at, size - at);
    if (to != nullptr) std::memcpy(to + at, &word, size - at);
    sum += term(word, key);
  }
  return sum;
}

#if defined(__x86_64__)

// Below it the destination fits the caches and is likely used soon; above it, reading the
// destination's lines before they are overwritten would cost a third of the memory's bandwidth.
constexpr std::size_t kStreamBytesMin = 2048;
constexpr std::size_t kLineBytes = 64;

// Lines are asked for so far ahead of their use.  The hardware's own prefetch stops at each page's
// end, and blocks lie anywhere: without it the first lines of each would be waited for, one by one.
// Into the next block as well it makes random blocks of 4 KiB a third faster; from 64 KiB on it
// gains nothing (measured).
constexpr std::size_t kPrefetchBytes = 4096;

// Into the second-level cache: it has more requests to memory in flight than the first.
inline void prefetch(const std::byte* at) noexcept {
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
}

enum class Stores { kNone, kPlain, kStreaming };

bool has_avx2() noexcept {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

// One 64-byte line in two vectors; `sum` and `keys` are the two lanes' running states.
struct Lines {
  __m256i sum[2];
  __m256i keys[2];
};

template <Stores stores, bool sums>
__attribute__((target("avx2"), always_inline)) inline void line(Lines& state, std::byte* to,
                                                                const std::byte* from,
                                                                __m256i key_step) noexcept {
  for (int half = 0; half < 2; ++half) {
    const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + half);
    if constexpr (stores == Stores::kPlain) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + half, word);
    } else if constexpr (stores == Stores::kStreaming) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + half, word);
    }
    if constexpr (!sums) continue;
    const __m256i x = _mm256_xor_si256(word, state.keys[half]);
    const __m256i product = _mm256_mul_epu32(x, _mm256_srli_epi64(x, 32));
    const __m256i turned = _mm256_shuffle_epi32(word, 0xB1);
    state.sum[half] = _mm256_add_epi64(state.sum[half], _mm256_add_epi64(product, turned));
    state.keys[half] = _mm256_add_epi64(state.keys[half], key_step);
  }
}

// Whole lines only; returns their sum.
template <Stores stores, bool sums = true>
__attribute__((target("avx2"))) std::uint64_t sum_lines(std::byte* to, const std::byte* from,
                                                        std::size_t size, std::uint64_t position,
                                                        const std::byte* next) noexcept {
  const auto lane_keys = [position](std::uint64_t first) {
    const auto at = [&](std::uint64_t word) {
      return static_cast<long long>(key_at(position + 8 * (first + word)));
    };
    return std::array<long long, 4>{at(0), at(1), at(2), at(3)};
  };
  const auto low = lane_keys(0);
  const auto high = lane_keys(4);
  Lines state{{_mm256_setzero_si256(), _mm256_setzero_si256()},
              {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(low.data())),
               _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high.data()))}};
  constexpr std::uint64_t kLineKeyStep = kLineBytes * kKeyStep;
  const __m256i key_step = _mm256_set1_epi64x(static_cast<long long>(kLineKeyStep));
  const std::size_t ahead = std::min(kPrefetchBytes, size);
  for (std::size_t at = 0; at < size; at += kLineBytes) {
    if (at + ahead < size) {
      prefetch(from + at + ahead);
    } else if (next != nullptr) {
      prefetch(next + (at + ahead - size));
    }
    line<stores, sums>(state, to == nullptr ? nullptr : to + at, from + at, key_step);
  }
  if constexpr (stores == Stores::kStreaming) _mm_sfence();
  std::array<std::uint64_t, 4> lanes{};
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes.data()),
                      _mm256_add_epi64(state.sum[0], state.sum[1]));
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

// Splits into words before the first whole line of `to`, lines, and the rest.
template <Stores stores>
std::uint64_t sum_fast(std::byte* to, const std::byte* from, std::size_t size,
                       std::uint64_t position, const std::byte* next) noexcept {
  const std::size_t head =
      stores == Stores::kStreaming
          ? (kLineBytes - reinterpret_cast<std::uintptr_t>(to) % kLineBytes) % kLineBytes
          : 0;
  const std::size_t lines = (size - head) / kLineBytes * kLineBytes;
  const auto skip = [&](std::size_t bytes) { return to == nullptr ? nullptr : to + bytes; };
  std::uint64_t sum = sum_words(to, from, head, position);
  sum += sum_lines<stores>(skip(head), from + head, lines, position + head, next);
  const std::size_t done = head + lines;
  return sum + sum_words(skip(done), from + done, size - done, position + done);
}

bool is_word_aligned(const std::byte* at) noexcept {
  return reinterpret_cast<std::uintptr_t>(at) % 8 == 0;
}

#endif

}  // namespace

std::uint64_t checksum_scalar(Bytes bytes, std::uint64_t position) noexcept {
  return sum_words(nullptr, bytes.data(), bytes.size(), position);
}

std::uint64_t checksum(Bytes bytes, std::uint64_t position) noexcept {
#if defined(__x86_64__)
  if (has_avx2())
    return sum_fast<Stores::kNone>(nullptr, bytes.data(), bytes.size(), position, nullptr);
#endif
  return checksum_scalar(bytes, position);
}

std::uint64_t copy_with_checksum(std::byte* to, const std::byte* from, std::size_t size,
                                 std::uint64_t position, const std::byte* next) noexcept {
#if defined(__x86_64__)
  if (has_avx2()) {
    // Words are counted from the range's first byte, so lines of `to` begin at a word only if it
    // is word-aligned itself.
    if (size >= kStreamBytesMin && is_word_aligned(to)) {
      return sum_fast<Stores::kStreaming>(to, from, size, position, next);
    }
    return sum_fast<Stores::kPlain>(to, from, size, position, next);
  }
#endif
  return sum_words(to, from, size, position);
}

void copy_without_checksum(std::byte* to, const std::byte* from, std::size_t size,
                           const std::byte* next) noexcept {
#if defined(__x86_64__)
  if (has_avx2() && size >= kStreamBytesMin) {
    const std::size_t head =
        (kLineBytes - reinterpret_cast<std::uintptr_t>(to) % kLineBytes) % kLineBytes;
    const std::size_t lines = (size - head) / kLineBytes * kLineBytes;
    std::memcpy(to, from, head);
    sum_lines<Stores::kStreaming, false>(to + head, from + head, lines, 0, next);
    std::memcpy(to + head + lines, from + head + lines, size - head - lines);
    return;
  }
#endif
  std::memcpy(to, from, size);
}

void RunningChecksum::take(std::byte* to, Bytes from, const std::byte* next) noexcept {
  std::size_t done = word_bytes_ > 0 ? fill_word(to, from) : 0;
  const auto target = [&] { return to == nullptr ? nullptr : to + done; };
  const std::size_t words = (from.size() - done) / 8 * 8;
  if (words > 0) {
    const auto bulk = from.subspan(done, words);
    sum_ += to == nullptr ? checksum(bulk, position_)
                          : copy_with_checksum(target(), bulk.data(), words, position_, next);
    position_ += words;
    done += words;
  }
  if (done < from.size()) fill_word(target(), from.subspan(done));
}

// Takes what the begun word lacks, or all there is; returns how much.
std::size_t RunningChecksum::fill_word(std::byte* to, Bytes from) noexcept {
  const std::size_t step = std::min(from.size(), word_.size() - word_bytes_);
  if (step == 0) return 0;
  std::memcpy(word_.data() + word_bytes_, from.data(), step);
  if (to != nullptr) std::memcpy(to, from.data(), step);
  word_bytes_ += step;
  if (word_bytes_ == word_.size()) {
    sum_ += checksum_scalar(word_, position_);
    position_ += word_.size();
    word_bytes_ = 0;
  }
  return step;
}

std::uint64_t RunningChecksum::finish() noexcept {
  sum_ += checksum_scalar(Bytes(word_).first(word_bytes_), position_);
  return sum_;
}

}  // namespace infinistore
