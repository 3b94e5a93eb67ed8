#include "core/bench/copy_limit.h"

#include <algorithm>
#include <cstring>

#include "core/bench/address.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace infinistore {
namespace {

#if defined(__x86_64__)

constexpr std::size_t kVectorBytes = 32;
constexpr std::size_t kStepBytes = 2 * kVectorBytes;
// Asked for so far ahead, since the hardware's own prefetch stops at each page's end: without it
// the loop is a fifth slower on blocks of 64 KiB at random places.
constexpr std::size_t kPrefetchBytes = 1024;

bool has_avx2() noexcept {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

__attribute__((target("avx2"))) void copy_nontemporal(std::byte* to, const std::byte* from,
                                                      std::size_t size) noexcept {
  const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(to) % kVectorBytes;
  const std::size_t head = std::min(size, (kVectorBytes - misaligned) % kVectorBytes);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + kStepBytes <= size; at += kStepBytes) {
    const auto* in = reinterpret_cast<const __m256i*>(from + at);
    auto* out = reinterpret_cast<__m256i*>(to + at);
    const auto* ahead = reinterpret_cast<const char*>(from + at) + kPrefetchBytes;
    _mm_prefetch(ahead, _MM_HINT_T0);
    const __m256i first = _mm256_loadu_si256(in);
    const __m256i second = _mm256_loadu_si256(in + 1);
    _mm256_stream_si256(out, first);
    _mm256_stream_si256(out + 1, second);
  }
  std::memcpy(to + at, from + at, size - at);
}

#endif

}  // namespace

void copy_blocks(CopyLoop loop, std::span<const std::uint64_t> targets,
                 std::span<const std::uint64_t> sources, std::size_t block_bytes) noexcept {
#if defined(__x86_64__)
  if (loop == CopyLoop::kNonTemporal && has_avx2()) {
    for (std::size_t block = 0; block < targets.size(); ++block) {
      copy_nontemporal(at_address(targets[block]), at_address(sources[block]), block_bytes);
    }
    _mm_sfence();
    return;
  }
#endif
  for (std::size_t block = 0; block < targets.size(); ++block) {
    std::memcpy(at_address(targets[block]), at_address(sources[block]), block_bytes);
  }
}

}  // namespace infinistore
