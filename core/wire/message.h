#pragma once
// Messages: one struct a frame body.  Views point into the body they were decoded from, or into the
// caller's memory when they are to be encoded.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/result.h"
#include "core/memory/extent.h"

namespace infinistore {

using BootId = std::array<std::byte, 16>;
using Nonce = std::array<std::byte, 16>;

// The range of each item of a PUT or GET; one entry serves all of them when `uniform`.
struct WireRange {
  std::uint64_t value_bytes = 0;
  std::uint64_t value_offset = 0;
  std::uint64_t bytes = 0;

  bool operator==(const WireRange&) const = default;
};

struct WireRanges {
  std::vector<WireRange> items = {};  // one (uniform), or one for each key

  const WireRange& of(std::size_t index) const noexcept {
    return items.size() == 1 ? items.front() : items[index];
  }
};

struct Hello {
  std::uint16_t version_min = 1;
  std::uint16_t version_max = 1;
  std::uint64_t incarnation = 0;
  BootId boot_id{};
  Nonce nonce{};
  std::string_view token = {};
  std::string_view space = {};
  std::string_view client_name = {};
};

struct Welcome {
  static constexpr std::uint64_t kSharedMemory = 1;
  static constexpr std::uint64_t kRdma = 2;      // ATTACH is answered
  static constexpr std::uint64_t kReadOnly = 4;  // what writes is refused

  std::uint16_t version = 1;
  std::uint32_t worker_index = 0;
  std::uint64_t incarnation = 0;
  BootId boot_id{};
  Nonce nonce{};
  std::uint64_t pool_bytes = 0;
  std::uint64_t capabilities = 0;
  std::string_view unix_path = {};
  std::string_view server_version = {};
  std::vector<std::uint64_t> region_bytes = {};
};

struct PutRequest {
  OnExists on_exists = OnExists::kKeep;
  std::vector<std::string_view> keys = {};
  WireRanges ranges = {};
  std::vector<std::string_view> parents = {};  // empty, or one for each key
  std::vector<std::uint32_t> depths = {};      // likewise
};

struct GrantReply {
  std::vector<Code> outcomes = {};
  std::vector<Extents> extents = {};  // shared memory: of each kOk item, in order; else empty
};

struct FillRequest {
  std::uint32_t granted_count = 0;
  std::vector<std::uint64_t> checksums = {};  // shared memory: one for each; else empty
};

struct ResultReply {
  std::vector<Code> outcomes = {};
};

struct GetRequest {
  std::uint32_t wait_ms = 0;
  std::uint64_t lease_id = 0;
  std::vector<std::string_view> keys = {};
  WireRanges ranges = {};
};

struct FoundItem {
  std::uint64_t value_bytes = 0;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;

  bool operator==(const FoundItem&) const = default;
};

struct DataReply {
  std::vector<Code> outcomes = {};
  std::vector<FoundItem> found = {};  // of each item that is kOk, in order
  std::vector<Extents> extents = {};  // shared memory: likewise; else empty
};

struct MatchRequest {
  std::uint32_t lease_ms = 0;
  std::uint32_t group = 1;
  std::vector<std::string_view> keys = {};
};

struct MatchedReply {
  std::uint32_t blocks = 0;
  std::uint64_t lease_id = 0;
};

struct KeysRequest {  // EXISTS, ERASE, ABORT
  std::vector<std::string_view> keys = {};
};

struct LeaseRequest {
  std::uint32_t lease_ms = 0;
  std::vector<std::uint64_t> lease_ids = {};
};

struct Counter {
  std::string name = {};
  std::uint64_t value = 0;

  bool operator==(const Counter&) const = default;
};

struct CountersReply {
  std::vector<Counter> counters = {};
};

struct ErrorReply {
  Code code = Code::kInvalid;
  std::string_view message = {};
};

}  // namespace infinistore
