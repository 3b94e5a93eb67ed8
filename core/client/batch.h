#pragma once
// Batch: one put or get of many keys, and what became of each.  Call: everything smaller.
//
// Both belong to who submitted them, and must outlive their end (operation.h).

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/limits.h"
#include "core/client/keys.h"
#include "core/client/operation.h"
#include "core/device/gate.h"
#include "core/transport/link.h"
#include "core/wire/frame.h"
#include "core/wire/message.h"

namespace infinistore {

enum class Verb { kPut, kGet };

// The same range of each value, gathered from or scattered to segments of the caller's memory.
struct BatchSpec {
  Verb verb = Verb::kPut;
  KeyList keys;
  std::vector<std::uint64_t> addresses;  // of the segments: key by key
  std::size_t segments_per_key = 1;
  std::uint64_t segment_bytes = 0;
  std::uint64_t value_bytes = 0;         // of the whole value; get: 0 takes any
  std::uint64_t value_offset = 0;        // of the range
  OnExists on_exists = OnExists::kKeep;  // put
  KeyList parents;                       // put: none, or one for each key
  std::vector<std::uint32_t> depths;
  std::uint32_t wait_ms = 0;   // get: for keys that are being written
  std::uint64_t lease_id = 0;  // get: under which the keys are pinned
  // Get, of one segment for each key: its bytes are the most that fits; a shorter value is taken
  // whole, and Batch::value_bytes says how long each is.
  bool is_up_to = false;
  // Segments of a GPU's memory, which may be touched once this opens; null: the host's.
  std::unique_ptr<Gate> gate;
  Mover mover = Mover::kMultiprocessors;

  std::uint64_t range_bytes() const noexcept { return segments_per_key * segment_bytes; }
  // Space of the pool that a put of one key takes at most: whole pages.
  std::uint64_t pool_bytes() const noexcept {
    return (range_bytes() + kPageBytesMin - 1) / kPageBytesMin * kPageBytesMin;
  }
};

class Batch final : public Operation {
 public:
  explicit Batch(BatchSpec batch_spec)
      : spec(std::move(batch_spec)),
        outcomes(spec.keys.size(), Code::kCancelled),
        value_bytes(spec.is_up_to ? spec.keys.size() : 0, 0) {}

  Segments segments(std::size_t index) const noexcept {
    const std::span all(spec.addresses);
    return {.addresses = all.subspan(index * spec.segments_per_key, spec.segments_per_key),
            .segment_bytes = spec.segment_bytes,
            .position = spec.value_offset,
            .gpu = gpu(),
            .mover = spec.mover};
  }
  Gpu* gpu() const noexcept { return spec.gate ? &spec.gate->gpu() : nullptr; }

  const BatchSpec spec;
  // Of each key; written by the threads that end its parts.
  std::vector<Code> outcomes;
  std::vector<std::uint64_t> value_bytes;  // with is_up_to: as stored, of what was found
};

// MATCH, EXISTS, ERASE, ABORT, LEASE, STATS or PING, and its answer.
struct CallSpec {
  Opcode opcode = Opcode::kPing;
  KeyList keys;
  std::uint32_t group = 1;     // MATCH: keys of one block
  std::uint32_t lease_ms = 0;  // MATCH, LEASE
  std::vector<std::uint64_t> lease_ids;
};

class Call final : public Operation {
 public:
  explicit Call(CallSpec call_spec) : spec(std::move(call_spec)) {}

  const CallSpec spec;
  std::vector<Code> outcomes;            // EXISTS, ERASE, ABORT: of each key, in order of the parts
  std::uint32_t blocks = 0;              // MATCH
  std::vector<std::uint64_t> lease_ids;  // MATCH: one for each request that it took
  std::vector<Counter> counters;         // STATS
};

}  // namespace infinistore
