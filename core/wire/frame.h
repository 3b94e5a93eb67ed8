#pragma once
// Frame: the 32-byte header of docs/protocol.md section 1, and the opcodes of section 3.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/base/bytes.h"
#include "core/base/limits.h"

namespace infinistore {

inline constexpr std::uint32_t kMagic = 0x31534649;  // "IFS1"
inline constexpr std::uint8_t kProtocolVersion = 1;
inline constexpr std::size_t kHeaderBytes = 32;

enum class Opcode : std::uint8_t {
  kHello = 1,
  kWelcome = 2,
  kPut = 3,
  kGrant = 4,
  kFill = 5,
  kResult = 6,
  kGet = 7,
  kData = 8,
  kDone = 9,
  kMatch = 10,
  kMatched = 11,
  kExists = 12,
  kErase = 13,
  kLease = 14,
  kAbort = 15,
  kStats = 16,
  kCounters = 17,
  kGoodbye = 18,
  kError = 19,
  kPing = 20,
  kSuspect = 21,
  kAttach = 22,
  kAttached = 23,
  kMoving = 24,
};
inline constexpr std::uint8_t kOpcodeLast = 24;

inline constexpr std::uint16_t kFlagHelloReadOnly = 1;  // HELLO
inline constexpr std::uint16_t kFlagFillCancelled = 1;  // FILL
inline constexpr std::uint16_t kFlagFillExposed = 2;    // FILL
inline constexpr std::uint16_t kFlagGetUpTo = 1;        // GET
inline constexpr std::uint16_t kFlagGetTakesCopy = 2;   // GET
inline constexpr std::uint16_t kFlagGetExposed = 4;     // GET
inline constexpr std::uint16_t kFlagDataCopied = 1;     // DATA
inline constexpr std::uint16_t kFlagDataPlaced = 2;     // DATA

struct FrameHeader {
  Opcode opcode = Opcode::kPing;
  std::uint16_t flags = 0;
  std::uint64_t request_id = 0;
  std::uint32_t body_bytes = 0;
  std::uint64_t payload_bytes = 0;

  bool operator==(const FrameHeader&) const = default;
};

// With the sum of header and body in it, so that a changed bit of either is found: one in a key
// would store a value under another, one in a request id would give bytes to another reader.
std::array<std::byte, kHeaderBytes> encode_header(const FrameHeader& header, Bytes body) noexcept;

// nullopt: not a frame of this protocol (magic, version, opcode, flags, a bound).  Whether its bits
// are those that were sent, is_intact() says once the body is there.
std::optional<FrameHeader> decode_header(Bytes bytes) noexcept;

// Whether the sum in an encoded header is that of itself and its body.
bool is_intact(Bytes header, Bytes body) noexcept;

}  // namespace infinistore
