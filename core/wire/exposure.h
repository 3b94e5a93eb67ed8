#pragma once
// Exposure: what RDMA adds to the wire: queue pairs, and memory that the server's device may reach.
//
// Bodies to messages and back, as in codec.h: every bound is checked, and nullopt is any body that
// is not exactly one well-formed message.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/bytes.h"
#include "core/wire/codec.h"

namespace infinistore {

using Gid = std::array<std::byte, 16>;

// Queue pairs of one connection: each on a device of its own.
inline constexpr std::size_t kRailsMax = 4;
// Registrations that one request names.
inline constexpr std::size_t kWindowsMax = 1024;
// An exposure's part of a body: what stands beside it fits too.
inline constexpr std::size_t kExposureBytesMax = 2u << 20;

// One end of a queue pair, as the other end must know it.
struct Endpoint {
  std::uint32_t qp = 0;
  std::uint32_t psn = 0;        // of its first packet: 24 bits
  std::uint16_t lid = 0;        // InfiniBand
  std::uint8_t mtu = 0;         // 1 to 5: 256 to 4096 bytes
  std::uint8_t link_layer = 0;  // 1 InfiniBand, 2 Ethernet
  std::uint8_t reads_max = 0;   // RDMA READs that it serves at once
  Gid gid{};

  bool operator==(const Endpoint&) const = default;
};

using Endpoints = std::vector<Endpoint>;

// Memory of the client, and the key to it on each rail.
struct Window {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  std::array<std::uint32_t, kRailsMax> keys{};

  bool operator==(const Window&) const = default;
};

// The segments of one item are `segments` of the addresses, those before them the items' before it.
struct ExposedItem {
  std::uint64_t segment_bytes = 0;
  std::uint32_t segments = 0;

  bool operator==(const ExposedItem&) const = default;
};

// Where the bytes of a request's items are in the client's memory, in order.
struct Exposure {
  std::vector<Window> windows = {};  // by rising base, without overlaps
  std::vector<ExposedItem> items = {};
  std::vector<std::uint64_t> addresses = {};
};

Body encode(const Endpoints& endpoints);
std::optional<Endpoints> decode_endpoints(Bytes body);

std::size_t encoded_bytes(const Exposure& exposure, std::size_t rails) noexcept;
// In front of `body`, the rest of the frame's.
Body encode(const Exposure& exposure, std::size_t rails, Bytes body);

struct ExposedBody {
  Exposure exposure;
  Bytes rest;  // of the frame's body
};
std::optional<ExposedBody> decode_exposed(Bytes body, std::size_t rails);

}  // namespace infinistore
