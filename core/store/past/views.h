#pragma once
// What an operator sees of keys and namespaces: plain values.

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/store/past/departures.h"

namespace infinistore {

struct KeyStory {
  enum class State : std::uint8_t { kPresent, kWritten, kLeft, kUnknown };

  State state = State::kUnknown;
  Departure departure;     // of one that left
  Nanos forgotten_at = 0;  // an unknown one was not there since, as far back as is remembered
};

// A key's story with names in place of numbers.
struct KeyAnswer {
  KeyStory story;
  Nanos ago = 0;         // since it left
  std::string pressing;  // the namespace whose writer needed the room
  // Of an unknown key: other namespaces that have it; those used last are looked at.
  std::vector<std::string> elsewhere;
};

// One namespace's share of a shard, or of the store.
struct SpaceCounts {
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;  // of the pool, of keys that can be read
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
};

// When a namespace was used last: marked by sessions, without a lock.
struct SpaceUse {
  std::atomic<Nanos> at{0};  // 0: never
};

struct SpaceView {
  std::string name;
  SpaceCounts counts;
  std::optional<Nanos> idle;  // nullopt: never used
};

}  // namespace infinistore
