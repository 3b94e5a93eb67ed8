#include "core/server/session/gets.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/memory/cut.h"

namespace infinistore {
namespace {

constexpr std::size_t kFoundBytes = 24;  // of an item in DATA, beside its extents

Waiter waiter_of(std::uint32_t worker, SessionId session, std::uint64_t request,
                 std::size_t index) {
  return {.worker_index = worker,
          .item_index = static_cast<std::uint32_t>(index),
          .session_id = session,
          .request_id = request};
}

}  // namespace

void Gets::begin(Connection& connection, const FrameHeader& header, Bytes body, NamespaceId space,
                 const Place& place, GetRequest request) {
  Open open;
  open.items.resize(request.keys.size());
  open.request = std::move(request);
  open.space = space;
  open.place = place;
  open.request_id = header.request_id;
  open.is_up_to = (header.flags & kFlagGetUpTo) != 0;
  open.takes_copy = (header.flags & kFlagGetTakesCopy) != 0;
  open.begun_at = context_.clock.now();
  const auto lease_id = open.request.lease_id;
  if (lease_id != 0 && !context_.leases.contains(lease_id, space)) {
    open.missing = Code::kLeaseExpired;
  }
  context_.store.for_each_expected(space, open.request.keys, Expect::kFind, [&](std::size_t i) {
    look_up(open, i);
    if (open.request.wait_ms > 0 && open.items[i].outcome == open.missing) wait_for(open, i);
  });
  if (open.waiting == 0) {
    answer(connection, std::move(open));
    return;
  }
  open.deadline = open.begun_at + open.request.wait_ms * kMillisecond;
  open.body.assign(body.begin(), body.end());
  auto own = decode_get(open.body);  // its keys point into our copy
  KV_CHECK(own.has_value());
  open.request = std::move(*own);
  waiting_.emplace(header.request_id, std::move(open));
}

void Gets::look_up(Open& open, std::size_t index) {
  auto& item = open.items[index];
  const auto& wanted = open.request.ranges.of(index);
  item.outcome = open.missing;
  auto lease = context_.store.find(open.space, open.request.keys[index],
                                   open.request.lease_id == 0);  // else the match counted it
  if (!lease) return;
  const std::uint64_t value_bytes = lease->value_bytes();
  const bool is_other = wanted.value_bytes != 0 && wanted.value_bytes != value_bytes;
  if (is_other || wanted.value_offset >= value_bytes) {
    item.outcome = Code::kSizeMismatch;
    return;
  }
  item.range = {.offset = wanted.value_offset, .bytes = wanted.bytes};
  const std::uint64_t room = value_bytes - wanted.value_offset;
  if (open.is_up_to) item.range.bytes = std::min(item.range.bytes, room);
  if (item.range.bytes == 0 || item.range.bytes > room) {
    item.outcome = item.range.bytes == 0 ? Code::kInvalid : Code::kSizeMismatch;
    return;
  }
  item.outcome = Code::kOk;
  item.lease = std::move(lease);
}

// Whether the key is being written: then its writer's end will be told.
bool Gets::wait_for(Open& open, std::size_t index) {
  const auto key = open.request.keys[index];
  if (!context_.store.is_written(open.space, key)) return false;
  const auto waiter =
      waiter_of(open.place.worker_index, open.place.session_id, open.request_id, index);
  context_.waits.add(open.space, key, waiter);
  // The writer may have ended before we were on the table.
  if (!context_.store.exists(open.space, key) && context_.store.is_written(open.space, key)) {
    open.items[index].waits = true;
    ++open.waiting;
    return true;
  }
  context_.waits.remove(open.space, key, waiter);
  look_up(open, index);
  return false;
}

void Gets::on_write_end(Connection& connection, const Waiter& waiter) {
  const auto found = waiting_.find(waiter.request_id);
  if (found == waiting_.end()) return;  // answered meanwhile
  auto& open = found->second;
  auto& item = open.items[waiter.item_index];
  if (!item.waits) return;
  item.waits = false;
  --open.waiting;
  look_up(open, waiter.item_index);
  if (item.outcome == open.missing) wait_for(open, waiter.item_index);  // another writer goes on
  if (open.waiting > 0) return;
  auto done = std::move(open);
  waiting_.erase(found);
  answer(connection, std::move(done));
}

void Gets::stop_waiting(Open& open) {
  for (std::size_t i = 0; i < open.items.size(); ++i) {
    if (!open.items[i].waits) continue;
    open.items[i].waits = false;
    context_.waits.remove(
        open.space, open.request.keys[i],
        waiter_of(open.place.worker_index, open.place.session_id, open.request_id, i));
  }
  open.waiting = 0;
}

void Gets::answer(Connection& connection, Open open) {
  DataReply reply;
  Sending sending;
  const ReplyLimits limits = connection.limits();
  ReplyLimits left = limits;
  std::size_t body_left = kBodyBytesMax - 4 - open.items.size();
  sending.begun_at = open.begun_at;
  std::vector<std::uint64_t> served_bytes;
  served_bytes.reserve(open.items.size());
  sending.pins.reserve(open.items.size());
  reply.outcomes.reserve(open.items.size());
  reply.found.reserve(open.items.size());
  reply.extents.reserve(open.items.size());
  for (auto& item : open.items) {
    if (item.outcome == Code::kOk && item.range.bytes > limits.payload_bytes) {
      item.outcome = Code::kTooLarge;  // in one range; in several it would fit
    }
    if (item.outcome == Code::kOk) item.outcome = add_found(open, item, left, body_left, reply);
    reply.outcomes.push_back(item.outcome);
    if (item.outcome != Code::kOk) continue;
    sending.bytes += item.range.bytes;
    served_bytes.push_back(item.range.bytes);
    sending.pins.push_back(std::move(*item.lease));
  }
  context_.heat.served(sending.pins, served_bytes, context_.clock.now());
  if (reply.found.empty()) {
    connection.send(Opcode::kData, open.request_id, encode(reply));
    return;
  }
  if (connection.push(open.request_id, std::move(reply), open.takes_copy) == Moved::kAll) {
    note_sent(sending);
  } else {
    sending_.emplace(open.request_id, std::move(sending));
  }
}

void Gets::note_sent(const Sending& sending) {
  metrics_.sent_bytes.add(sending.bytes);
  const Nanos took = context_.clock.now() - sending.begun_at;
  metrics_.get_us.record(static_cast<std::uint64_t>(took / 1000));
}

Code Gets::add_found(const Open& open, Item& item, ReplyLimits& left, std::size_t& body_left,
                     DataReply& reply) {
  auto extents = cut(item.lease->extents(), item.range.offset, item.range.bytes);
  const std::size_t body = kFoundBytes + (left.has_extents ? 2 + 24 * extents.size() : 0);
  if (item.range.bytes > left.payload_bytes || body > body_left) return Code::kOverloaded;
  const auto checksum = item.lease->range_checksum(item.range);
  if (!checksum) {
    if (checksum.code() != Code::kCorrupt) return checksum.code();
    context_.store.drop_corrupt(*item.lease);
    return open.missing;
  }
  left.payload_bytes -= item.range.bytes;
  body_left -= body;
  reply.found.push_back({.value_bytes = item.lease->value_bytes(),
                         .bytes = item.range.bytes,
                         .checksum = checksum.value()});
  reply.extents.push_back(std::move(extents));
  return Code::kOk;
}

void Gets::on_pushed(std::uint64_t request_id) {
  const auto found = sending_.find(request_id);
  if (found == sending_.end()) return;
  note_sent(found->second);
  sending_.erase(found);
}

std::optional<Nanos> Gets::expire(Connection& connection, Nanos now) {
  std::optional<Nanos> next;
  std::vector<std::uint64_t> due;
  for (const auto& [id, open] : waiting_) {
    if (open.deadline <= now) {
      due.push_back(id);
    } else {
      next = std::min(next.value_or(open.deadline), open.deadline);
    }
  }
  for (const auto id : due) {
    const auto found = waiting_.find(id);
    auto open = std::move(found->second);
    waiting_.erase(found);
    stop_waiting(open);
    answer(connection, std::move(open));
  }
  return next;
}

void Gets::drop_all() {
  for (auto& [id, open] : waiting_) stop_waiting(open);
  waiting_.clear();
  sending_.clear();
}

}  // namespace infinistore
