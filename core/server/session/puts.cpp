#include "core/server/session/puts.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/memory/cut.h"

namespace infinistore {
namespace {

bool lies_within(Range range, std::uint64_t value_bytes) noexcept {
  return range.bytes > 0 && range.offset < value_bytes && range.bytes <= value_bytes - range.offset;
}

Nanos stage_timeout(const ServerContext& context) noexcept {
  return static_cast<Nanos>(context.options.stage_timeout_s * static_cast<double>(kSecond));
}

}  // namespace

// Takes the room of one item in GRANT and FILL.
Code Puts::Budget::take(std::uint64_t bytes, std::size_t extents) noexcept {
  if (bytes > payload_max) return Code::kTooLarge;  // in one range; in several it would fit
  const std::size_t body = has_extents ? 2 + 24 * extents : 0;
  if (bytes > payload_left || body > body_left) return Code::kOverloaded;
  payload_left -= bytes;
  body_left -= body;
  return Code::kOk;
}

void Puts::begin(Connection& connection, std::uint64_t request_id, NamespaceId space,
                 const PutRequest& request) {
  const auto limits = connection.limits();
  const std::size_t count = request.keys.size();
  Grant grant;
  grant.budget = {.payload_left = limits.payload_bytes,
                  .payload_max = limits.payload_bytes,
                  .body_left = kBodyBytesMax - 4 - count,
                  .has_extents = limits.has_extents};
  grant.open.begun_at = context_.clock.now();
  grant.open.outcomes.reserve(count);
  grant.open.items.reserve(count);
  grant.places.reserve(count);
  context_.store.for_each_expected(space, request.keys, Expect::kReserve, [&](std::size_t i) {
    const auto& wire = request.ranges.of(i);
    const Intent intent{
        .space = space,
        .key = request.keys[i],
        .value_bytes = wire.value_bytes,
        .on_exists = request.on_exists,
        .parent = request.parents.empty() ? std::string_view{} : request.parents[i],
        .depth = request.depths.empty() ? 0 : request.depths[i],
        .claims_whole = wire.bytes == wire.value_bytes && request.on_exists != OnExists::kCopy};
    grant.open.outcomes.push_back(
        this->grant(grant, static_cast<std::uint32_t>(i), intent, {wire.value_offset, wire.bytes}));
  });
  if (grant.open.items.empty()) {
    connection.send(Opcode::kGrant, request_id,
                    encode(GrantReply{.outcomes = grant.open.outcomes, .extents = {}}));
    answer(connection, request_id, grant.open, Code::kOk);
    return;
  }
  GrantReply reply{.outcomes = grant.open.outcomes, .extents = std::move(grant.places)};
  open_.emplace(request_id, std::move(grant.open));
  connection.pull(request_id, std::move(reply));
}

// The outcome in GRANT.
Code Puts::grant(Grant& grant, std::uint32_t index, const Intent& intent, Range range) {
  if (!lies_within(range, intent.value_bytes)) return Code::kInvalid;
  if (!stage_of_key_.empty()) {
    const auto found = stage_of_key_.find(std::string(intent.key));
    if (found != stage_of_key_.end()) {
      const auto id = found->second;
      const auto& stage = stages_.at(id);
      if (stage.on_exists != OnExists::kReplace &&
          context_.store.exists(intent.space, intent.key)) {
        drop(id, Code::kExists);  // another writer was first: the rest need not travel
        return Code::kExists;
      }
      if (stage.reservation.value_bytes() != intent.value_bytes) return Code::kSizeMismatch;
      if (stage.on_exists == OnExists::kCopy && stage.reservation.is_complete()) {
        return confirm(grant, index, id);
      }
      return grant_range(grant, index, id, range);
    }
  }
  auto reserved = context_.store.reserve(intent);
  if (!reserved) return reserved.code();
  if (range.bytes == intent.value_bytes && intent.on_exists != OnExists::kCopy) {
    return grant_whole(grant, index, std::move(reserved).value(), range);
  }
  const StageId id = ++last_stage_;
  stages_.emplace(id, Stage{.reservation = std::move(reserved).value(),
                            .on_exists = intent.on_exists,
                            .dropped_as = Code::kOk,
                            .in_flight = 0,
                            .progress_at = context_.clock.now()});
  stage_of_key_.emplace(intent.key, id);
  const Code code = grant_range(grant, index, id, range);
  if (code != Code::kOk) drop(id, code);
  return code;
}

Code Puts::grant_whole(Grant& grant, std::uint32_t index, Reservation reservation, Range range) {
  const Code fits = grant.budget.take(range.bytes, reservation.extents().size());
  if (fits != Code::kOk) return fits;
  grant.places.push_back(reservation.extents());
  grant.open.bytes += range.bytes;
  grant.open.items.push_back(
      {.index = index, .stage = 0, .whole = std::move(reservation), .range = range});
  return Code::kOk;
}

Code Puts::grant_range(Grant& grant, std::uint32_t index, StageId id, Range range) {
  auto& stage = stages_.at(id);
  const Code claimed = stage.reservation.claim(range);
  if (claimed == Code::kExists) grant.open.echoes.push_back(index);
  if (claimed != Code::kOk) return claimed;
  auto place = cut(stage.reservation.extents(), range.offset, range.bytes);
  const Code fits = grant.budget.take(range.bytes, place.size());
  if (fits != Code::kOk) {
    stage.reservation.unclaim(range);
    return fits;
  }
  ++stage.in_flight;
  stage.progress_at = context_.clock.now();
  grant.places.push_back(std::move(place));
  grant.open.bytes += range.bytes;
  grant.open.items.push_back({.index = index, .stage = id, .whole = {}, .range = range});
  return Code::kOk;
}

void Puts::on_pulled(Connection& connection, std::uint64_t request_id, Code outcome,
                     std::span<const std::uint64_t> checksums) {
  const auto found = open_.find(request_id);
  if (found == open_.end()) return;
  auto open = std::move(found->second);
  open_.erase(found);
  if (outcome != Code::kOk) {
    for (auto& item : open.items) {
      give_back(item);
      open.outcomes[item.index] = outcome;
    }
    answer(connection, request_id, open, outcome);
    return;
  }
  KV_CHECK(checksums.size() == open.items.size());
  for (std::size_t i = 0; i < open.items.size(); ++i) {
    auto& item = open.items[i];
    open.outcomes[item.index] = finish(item, checksums[i]);
  }
  metrics_.received_bytes.add(open.bytes);
  answer(connection, request_id, open, Code::kOk);
}

// RESULT.  A repeated range shares the fate of what it repeats.
void Puts::answer(Connection& connection, std::uint64_t request_id, Open& open, Code echo_outcome) {
  for (const auto index : open.echoes) open.outcomes[index] = echo_outcome;
  connection.send(Opcode::kResult, request_id,
                  encode(ResultReply{.outcomes = std::move(open.outcomes)}));
  const Nanos took = context_.clock.now() - open.begun_at;
  metrics_.put_us.record(static_cast<std::uint64_t>(took / 1000));
}

Code Puts::finish(Item& item, std::uint64_t checksum) {
  if (item.whole) return std::move(*item.whole).seal_whole(checksum);
  auto& stage = stages_.at(item.stage);
  --stage.in_flight;
  if (stage.dropped_as != Code::kOk) {
    const Code as = stage.dropped_as;
    if (stage.in_flight == 0) stages_.erase(item.stage);
    return as;
  }
  stage.reservation.filled(item.range, checksum);
  stage.progress_at = context_.clock.now();
  if (!stage.reservation.is_complete() || stage.on_exists == OnExists::kCopy) return Code::kOk;
  return seal(item.stage);
}

// A put of a copy that is whole here, once more: its sender has looked meanwhile whether it is old.
Code Puts::confirm(Grant& grant, std::uint32_t index, StageId id) {
  const Code sealed = seal(id);
  if (sealed != Code::kOk) return sealed;
  grant.open.echoes.push_back(index);
  return Code::kExists;
}

Code Puts::seal(StageId id) {
  const auto found = stages_.find(id);
  auto reservation = std::move(found->second.reservation);
  stage_of_key_.erase(std::string(reservation.key()));
  stages_.erase(found);
  return std::move(reservation).seal();
}

void Puts::give_back(Item& item) {
  if (item.whole) {
    item.whole.reset();
    return;
  }
  auto& stage = stages_.at(item.stage);
  --stage.in_flight;
  if (stage.dropped_as != Code::kOk) {
    if (stage.in_flight == 0) stages_.erase(item.stage);
    return;
  }
  stage.reservation.unclaim(item.range);
  if (stage.in_flight == 0 && stage.reservation.filled_bytes() == 0) {
    drop(item.stage, Code::kCancelled);
  }
}

Code Puts::abort(std::string_view key) {
  const auto found = stage_of_key_.find(std::string(key));
  if (found == stage_of_key_.end()) return Code::kMissing;
  drop(found->second, Code::kAborted);
  return Code::kOk;
}

void Puts::drop(StageId id, Code as) {
  const auto found = stages_.find(id);
  stage_of_key_.erase(std::string(found->second.reservation.key()));
  if (found->second.in_flight == 0) {
    stages_.erase(found);
  } else {
    found->second.dropped_as = as;
  }
}

std::optional<Nanos> Puts::expire(Nanos now) {
  const Nanos timeout = stage_timeout(context_);
  std::optional<Nanos> next;
  std::vector<StageId> due;
  for (const auto& [id, stage] : stages_) {
    const Nanos deadline = stage.progress_at + timeout;
    if (stage.in_flight == 0 && deadline <= now) {
      due.push_back(id);
    } else {
      // What is on its way is late, but not to be dropped: later again.
      const Nanos again = std::max(deadline, now + kSecond);
      next = std::min(next.value_or(again), again);
    }
  }
  for (const auto id : due) drop(id, Code::kAborted);
  return next;
}

std::vector<Quarantine> Puts::drop_all(bool is_fenced) {
  std::vector<Quarantine> remains;
  if (!is_fenced) {
    for (auto& [id, open] : open_) {
      for (auto& item : open.items) {
        if (item.whole) remains.push_back(std::move(*item.whole).quarantine());
      }
    }
    for (auto& [id, stage] : stages_) {
      if (stage.in_flight > 0) remains.push_back(std::move(stage.reservation).quarantine());
    }
  }
  open_.clear();
  stage_of_key_.clear();
  stages_.clear();
  return remains;
}

}  // namespace infinistore
