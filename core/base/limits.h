#pragma once
// Every bound of the system, each with its reason.

#include <cstddef>
#include <cstdint>

namespace infinistore {

// A key's length travels in one byte.
inline constexpr std::size_t kKeyBytesMax = 255;

// Keys in one frame: a batch of 100,000 is 25 frames; a frame of the longest keys with parents and
// columns stays below kBodyBytesMax.
inline constexpr std::size_t kBatchKeysMax = 4096;
inline constexpr std::size_t kBodyBytesMax = 4u << 20;
static_assert(kBatchKeysMax * (2 * (kKeyBytesMax + 1) + 3 * 8 + 4) + 4096 <= kBodyBytesMax);

// Bulk bytes of one frame: 64-bit everywhere, yet a peer cannot announce more than it may send
// soon.
inline constexpr std::uint64_t kPayloadBytesMax = std::uint64_t{1} << 30;

// Text fields of HELLO.
inline constexpr std::size_t kTokenBytesMax = 512;
inline constexpr std::size_t kNamespaceBytesMax = 512;
inline constexpr std::size_t kClientNameBytesMax = 128;
inline constexpr std::size_t kErrorMessageBytesMax = 1024;

// The pool.  SCM_RIGHTS carries at most 253 descriptors; pages are what a CPU maps at once.
inline constexpr std::uint32_t kRegionsMax = 64;
inline constexpr std::uint64_t kPageBytesMin = 4096;
inline constexpr std::uint64_t kPageBytesMax = 2u << 20;

// Requests that a session may have open before it is answered kOverloaded: a client's window is
// smaller (kWindowRequests), so an honest one never sees it.
inline constexpr std::size_t kSessionRequestsMax = 256;
inline constexpr std::size_t kWindowRequests = 8;
inline constexpr std::size_t kLeaseKeysMax = 1u << 20;
inline constexpr std::size_t kSessionsMax = 16384;

// Descriptors that sessions leave to the rest of the process (an eighth at most of its ulimit -n).
inline constexpr std::size_t kDescriptorsKept = 32;

// Names are kept as long as the server runs: with the longest ones some 76 MB.
inline constexpr std::size_t kNamespacesMax = 65536;
// One tenant cannot use up the names of all.
inline constexpr std::size_t kNamespacesPerOwnerMax = 1024;

// Bytes queued towards a peer that reads too slowly, beside bulk bytes (which are borrowed, not
// queued): beyond it the connection is closed.
inline constexpr std::size_t kSendQueueBytesMax = 64u << 20;

// Ranges that one value is filled in: a model has some hundred layers, with a few head ranges each;
// more would let a client of tiny ranges cost the store more memory than its values.
inline constexpr std::size_t kRangesPerValueMax = 4096;

// Of the pool, unsealed at most (product: beyond it kOverloaded).
inline constexpr std::uint64_t kStagedPercentMax = 25;

// Keys whose heat a server knows, 48 bytes each: what is hotter than an 8,192th of all that it
// serves is among them, whatever else is read.
inline constexpr std::size_t kHeatKeysMax = 8192;

// Keys that have left and are remembered, by which `explain` tells evicted from never stored: 16
// bytes each, so 0.1 % of the pool up to 16 MiB.
inline constexpr std::uint64_t kDepartureBytesOfPool = 16 << 10;
inline constexpr std::size_t kDeparturesMin = 4096;
inline constexpr std::size_t kDeparturesMax = 1u << 20;

// Keys of which every use is followed, for the hit rate by pool size: some 3 MiB.  With a quarter
// of them a few hash seeds erred by more than two points (`make what-if`).  And the largest pool
// that the curve is of, in pools as this one.
inline constexpr std::size_t kSampledKeysMax = 32768;
inline constexpr std::uint64_t kCurvePoolsMax = 8;

// Keys of one `explain`, and namespaces in which a key that is missing is looked for.
inline constexpr std::size_t kExplainedKeysMax = 1024;
inline constexpr std::size_t kExplainedSpacesMax = 256;

}  // namespace infinistore
