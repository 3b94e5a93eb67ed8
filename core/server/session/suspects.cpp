#include "core/server/session/suspects.h"

#include <algorithm>

namespace infinistore {
namespace {

// Of one slice: some milliseconds.  A block of KV is decided in the first, so that a write which
// follows the report finds the key gone.
constexpr std::uint64_t kSliceBytes = std::uint64_t{16} << 20;
// What a key costs beside its bytes.
constexpr std::uint64_t kKeyCostBytes = 4096;

}  // namespace

void Suspects::begin(std::uint64_t request_id, NamespaceId space,
                     const std::vector<std::string_view>& keys) {
  open_.push_back({.request_id = request_id,
                   .space = space,
                   .keys = {keys.begin(), keys.end()},
                   .outcomes = {},
                   .check = std::nullopt});
}

bool Suspects::step(Connection& connection) {
  std::uint64_t left = kSliceBytes;
  while (!open_.empty() && left > 0) {
    Open& open = open_.front();
    if (open.outcomes.size() < open.keys.size()) {
      left -= std::min(left, look(open, left));
      continue;
    }
    const auto request_id = open.request_id;
    const ResultReply reply{.outcomes = std::move(open.outcomes)};
    open_.pop_front();
    connection.send(Opcode::kResult, request_id, encode(reply));
  }
  return !open_.empty();
}

// Goes on with the first key that is undecided; returns what that cost.
std::uint64_t Suspects::look(Open& open, std::uint64_t bytes_max) {
  if (!open.check) {
    auto lease = context_.store.find_quietly(open.space, open.keys[open.outcomes.size()]);
    if (!lease) {
      open.outcomes.push_back(Code::kMissing);
      return kKeyCostBytes;
    }
    open.check.emplace(std::move(*lease));
  }
  const std::uint64_t before = open.check->done_bytes();
  const auto state = open.check->step(bytes_max);
  const std::uint64_t cost = open.check->done_bytes() - before + kKeyCostBytes;
  if (state == ValueCheck::State::kGoesOn) return cost;
  if (state == ValueCheck::State::kCorrupt) {
    context_.store.drop_corrupt(open.check->lease());
    open.outcomes.push_back(Code::kCorrupt);
  } else {
    metrics_.false_alarms.add();
    open.outcomes.push_back(Code::kOk);
  }
  open.check.reset();
  return cost;
}

}  // namespace infinistore
