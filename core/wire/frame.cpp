#include "core/wire/frame.h"

#include <bit>
#include <cstring>
#include <span>
#include <utility>

#include "core/base/checksum.h"

namespace infinistore {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

struct RawHeader {
  std::uint32_t magic;
  std::uint8_t version;
  std::uint8_t opcode;
  std::uint16_t flags;
  std::uint64_t request_id;
  std::uint32_t body_bytes;
  std::uint32_t sum;
  std::uint64_t payload_bytes;
};
static_assert(sizeof(RawHeader) == kHeaderBytes);

std::uint16_t flags_allowed(Opcode opcode) noexcept {
  if (opcode == Opcode::kHello) return kFlagHelloReadOnly;
  if (opcode == Opcode::kFill) return kFlagFillCancelled | kFlagFillExposed;
  if (opcode == Opcode::kGet) return kFlagGetUpTo | kFlagGetTakesCopy | kFlagGetExposed;
  if (opcode == Opcode::kData) return kFlagDataCopied | kFlagDataPlaced;
  return 0;
}

bool carries_payload(Opcode opcode) noexcept {
  return opcode == Opcode::kFill || opcode == Opcode::kData;
}

// Of a header whose sum is 0 and of its body, which lies behind it.
std::uint32_t sum_of(const RawHeader& header, Bytes body) noexcept {
  // Spreads the sum's bits, so that the half that is kept depends on all of them.
  constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15ULL;
  // Most bodies are shorter than what the fast version needs to begin with.
  constexpr std::size_t kShortBytes = 256;
  const std::uint64_t sum = checksum_scalar(std::as_bytes(std::span(&header, 1)), 0) +
                            (body.size() < kShortBytes ? checksum_scalar(body, kHeaderBytes)
                                                       : checksum(body, kHeaderBytes));
  return static_cast<std::uint32_t>((sum * kSpread) >> 32);
}

}  // namespace

std::array<std::byte, kHeaderBytes> encode_header(const FrameHeader& header, Bytes body) noexcept {
  RawHeader raw{.magic = kMagic,
                .version = kProtocolVersion,
                .opcode = static_cast<std::uint8_t>(header.opcode),
                .flags = header.flags,
                .request_id = header.request_id,
                .body_bytes = header.body_bytes,
                .sum = 0,
                .payload_bytes = header.payload_bytes};
  raw.sum = sum_of(raw, body);
  return std::bit_cast<std::array<std::byte, kHeaderBytes>>(raw);
}

bool is_intact(Bytes header, Bytes body) noexcept {
  if (header.size() != kHeaderBytes) return false;
  RawHeader raw{};
  std::memcpy(&raw, header.data(), sizeof raw);
  const std::uint32_t sum = std::exchange(raw.sum, 0);
  return sum == sum_of(raw, body);
}

std::optional<FrameHeader> decode_header(Bytes bytes) noexcept {
  if (bytes.size() != kHeaderBytes) return std::nullopt;
  RawHeader raw{};
  std::memcpy(&raw, bytes.data(), sizeof raw);
  if (raw.magic != kMagic || raw.version != kProtocolVersion) return std::nullopt;
  if (raw.opcode == 0 || raw.opcode > kOpcodeLast) return std::nullopt;
  const auto opcode = static_cast<Opcode>(raw.opcode);
  if ((raw.flags & ~flags_allowed(opcode)) != 0) return std::nullopt;
  if (raw.body_bytes > kBodyBytesMax) return std::nullopt;
  if (raw.payload_bytes > (carries_payload(opcode) ? kPayloadBytesMax : 0)) return std::nullopt;
  return FrameHeader{opcode, raw.flags, raw.request_id, raw.body_bytes, raw.payload_bytes};
}

}  // namespace infinistore
