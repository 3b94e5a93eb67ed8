#include "core/wire/exposure.h"

#include <cstring>

#include "core/base/check.h"

namespace infinistore {
namespace {

constexpr std::uint32_t kPsnBits = 24;
constexpr std::size_t kEndpointBytes = 32;

template <class T>
void put(Body& body, T value) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  body.insert(body.end(), bytes, bytes + sizeof value);
}

// The caller has looked whether so much is there.
template <class T>
T take(Bytes& left) {
  T value{};
  std::memcpy(&value, left.data(), sizeof value);
  left = left.subspan(sizeof value);
  return value;
}

bool is_plausible(const Endpoint& endpoint) noexcept {
  return endpoint.psn >> kPsnBits == 0 && endpoint.mtu >= 1 && endpoint.mtu <= 5 &&
         (endpoint.link_layer == 1 || endpoint.link_layer == 2);
}

constexpr std::size_t window_bytes(std::size_t rails) noexcept { return 16 + 4 * rails; }
constexpr std::size_t kItemBytes = 12;
constexpr std::size_t kHeadBytes = 16;  // its length, then the counts

bool read_windows(Bytes& left, std::size_t count, std::size_t rails, Exposure& exposure) {
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Window window;
    window.base = take<std::uint64_t>(left);
    window.bytes = take<std::uint64_t>(left);
    for (std::size_t rail = 0; rail < rails; ++rail) window.keys[rail] = take<std::uint32_t>(left);
    if (window.bytes == 0 || window.base < end || window.base + window.bytes <= window.base) {
      return false;
    }
    end = window.base + window.bytes;
    exposure.windows.push_back(window);
  }
  return true;
}

}  // namespace

Body encode(const Endpoints& endpoints) {
  KV_CHECK(!endpoints.empty() && endpoints.size() <= kRailsMax);
  Body body;
  put(body, static_cast<std::uint32_t>(endpoints.size()));
  for (const auto& endpoint : endpoints) {
    put(body, endpoint.qp);
    put(body, endpoint.psn);
    put(body, endpoint.lid);
    put(body, endpoint.mtu);
    put(body, endpoint.link_layer);
    put(body, static_cast<std::uint32_t>(endpoint.reads_max));
    body.insert(body.end(), endpoint.gid.begin(), endpoint.gid.end());
  }
  return body;
}

std::optional<Endpoints> decode_endpoints(Bytes body) {
  if (body.size() < sizeof(std::uint32_t)) return std::nullopt;
  const std::size_t count = take<std::uint32_t>(body);
  if (count == 0 || count > kRailsMax || body.size() != count * kEndpointBytes) return std::nullopt;
  Endpoints endpoints(count);
  for (auto& endpoint : endpoints) {
    endpoint.qp = take<std::uint32_t>(body);
    endpoint.psn = take<std::uint32_t>(body);
    endpoint.lid = take<std::uint16_t>(body);
    endpoint.mtu = take<std::uint8_t>(body);
    endpoint.link_layer = take<std::uint8_t>(body);
    const auto reads_max = take<std::uint32_t>(body);
    endpoint.gid = take<Gid>(body);
    if (!is_plausible(endpoint) || reads_max > 255) return std::nullopt;
    endpoint.reads_max = static_cast<std::uint8_t>(reads_max);
  }
  return endpoints;
}

std::size_t encoded_bytes(const Exposure& exposure, std::size_t rails) noexcept {
  return kHeadBytes + exposure.windows.size() * window_bytes(rails) +
         exposure.items.size() * kItemBytes + exposure.addresses.size() * sizeof(std::uint64_t);
}

Body encode(const Exposure& exposure, std::size_t rails, Bytes body) {
  KV_CHECK(rails <= kRailsMax && exposure.windows.size() <= kWindowsMax);
  const std::size_t bytes = encoded_bytes(exposure, rails);
  Body out;
  out.reserve(bytes + body.size());
  put(out, static_cast<std::uint32_t>(bytes));
  put(out, static_cast<std::uint32_t>(exposure.windows.size()));
  put(out, static_cast<std::uint32_t>(exposure.items.size()));
  put(out, static_cast<std::uint32_t>(exposure.addresses.size()));
  for (const auto& window : exposure.windows) {
    put(out, window.base);
    put(out, window.bytes);
    for (std::size_t rail = 0; rail < rails; ++rail) put(out, window.keys[rail]);
  }
  for (const auto& item : exposure.items) {
    put(out, item.segment_bytes);
    put(out, item.segments);
  }
  const auto addresses = std::as_bytes(std::span(exposure.addresses));
  out.insert(out.end(), addresses.begin(), addresses.end());
  out.insert(out.end(), body.begin(), body.end());
  return out;
}

std::optional<ExposedBody> decode_exposed(Bytes body, std::size_t rails) {
  if (body.size() < kHeadBytes) return std::nullopt;
  Bytes left = body;
  const std::size_t bytes = take<std::uint32_t>(left);
  const std::size_t windows = take<std::uint32_t>(left);
  const std::size_t items = take<std::uint32_t>(left);
  const std::size_t addresses = take<std::uint32_t>(left);
  if (windows == 0 || windows > kWindowsMax || items > kBatchKeysMax ||
      addresses > kExposureBytesMax / sizeof(std::uint64_t) || bytes > body.size() ||
      bytes != kHeadBytes + windows * window_bytes(rails) + items * kItemBytes +
                   addresses * sizeof(std::uint64_t)) {
    return std::nullopt;
  }
  ExposedBody read;
  read.rest = body.subspan(bytes);
  if (!read_windows(left, windows, rails, read.exposure)) return std::nullopt;
  std::size_t named = 0;
  for (std::size_t i = 0; i < items; ++i) {
    ExposedItem item;
    item.segment_bytes = take<std::uint64_t>(left);
    item.segments = take<std::uint32_t>(left);
    if (item.segment_bytes == 0 || item.segment_bytes > kPayloadBytesMax || item.segments == 0) {
      return std::nullopt;
    }
    named += item.segments;
    read.exposure.items.push_back(item);
  }
  if (named != addresses) return std::nullopt;
  read.exposure.addresses.resize(addresses);
  if (addresses > 0) {
    std::memcpy(read.exposure.addresses.data(), left.data(), addresses * sizeof(std::uint64_t));
  }
  return read;
}

}  // namespace infinistore
