#include "core/wire/frame.h"

#include <bit>
#include <cstring>

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
  std::uint32_t zero;
  std::uint64_t payload_bytes;
};
static_assert(sizeof(RawHeader) == kHeaderBytes);

std::uint16_t flags_allowed(Opcode opcode) noexcept {
  if (opcode == Opcode::kFill) return kFlagFillCancelled;
  if (opcode == Opcode::kGet) return kFlagGetUpTo | kFlagGetTakesCopy;
  if (opcode == Opcode::kData) return kFlagDataCopied;
  return 0;
}

bool carries_payload(Opcode opcode) noexcept {
  return opcode == Opcode::kFill || opcode == Opcode::kData;
}

}  // namespace

std::array<std::byte, kHeaderBytes> encode_header(const FrameHeader& header) noexcept {
  const RawHeader raw{.magic = kMagic,
                      .version = kProtocolVersion,
                      .opcode = static_cast<std::uint8_t>(header.opcode),
                      .flags = header.flags,
                      .request_id = header.request_id,
                      .body_bytes = header.body_bytes,
                      .zero = 0,
                      .payload_bytes = header.payload_bytes};
  return std::bit_cast<std::array<std::byte, kHeaderBytes>>(raw);
}

std::optional<FrameHeader> decode_header(Bytes bytes) noexcept {
  if (bytes.size() != kHeaderBytes) return std::nullopt;
  RawHeader raw{};
  std::memcpy(&raw, bytes.data(), sizeof raw);
  if (raw.magic != kMagic || raw.version != kProtocolVersion || raw.zero != 0) return std::nullopt;
  if (raw.opcode == 0 || raw.opcode > kOpcodeLast) return std::nullopt;
  const auto opcode = static_cast<Opcode>(raw.opcode);
  if ((raw.flags & ~flags_allowed(opcode)) != 0) return std::nullopt;
  if (raw.body_bytes > kBodyBytesMax) return std::nullopt;
  if (raw.payload_bytes > (carries_payload(opcode) ? kPayloadBytesMax : 0)) return std::nullopt;
  return FrameHeader{opcode, raw.flags, raw.request_id, raw.body_bytes, raw.payload_bytes};
}

}  // namespace infinistore
