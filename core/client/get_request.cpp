// GET -> DATA, for some keys of a batch.

#include <optional>

#include "core/client/request.h"
#include "core/wire/codec.h"

namespace infinistore {
namespace {

class GetPart final : public Request {
 public:
  GetPart(Batch& batch, std::vector<std::uint32_t> indexes)
      : batch_(&batch),
        indexes_(std::move(indexes)),
        range_bytes_(batch.spec.range_bytes()),
        wait_ms_(batch.spec.wait_ms),
        is_up_to_(batch.spec.is_up_to) {}

  Lane lane() const noexcept override { return wait_ms_ > 0 ? Lane::kWaiting : Lane::kBulk; }
  std::uint64_t put_bytes() const noexcept override { return 0; }
  std::uint64_t bulk_bytes() const noexcept override { return indexes_.size() * range_bytes_; }
  Nanos patience() const noexcept override { return wait_ms_ * kMillisecond; }
  bool uses_gpu() const noexcept override { return batch_ != nullptr && batch_->gpu() != nullptr; }
  Payload* payload() noexcept override { return transfer_.payload.get(); }
  std::uint64_t operation_id() const noexcept override {
    return batch_ == nullptr ? 0 : batch_->id();
  }

  Code start(Line& line) override;
  Result<Step> on_frame(const FrameHeader& header, Bytes body, Line& line) override;
  Result<Step> on_moved(Line& line) override;
  Result<Step> on_copied(Line& line) override;
  void on_refused() override { transfer_.shown.reset(); }
  void cancel(const Error& reason, Line& line) override;
  void fail(const Error& reason) override;

 private:
  std::optional<std::uint64_t> sum_found(const std::vector<FoundItem>& found) const noexcept;
  Result<Step> receive(DataReply data, std::uint64_t payload_bytes, Line& line);
  Result<Step> after_move(Result<Moved> moved, Line& line);
  Result<Step> give_up(const Error& error, Line& line);
  Step finish(Line& line);

  Batch* batch_;  // nullptr: the part has ended
  std::vector<std::uint32_t> indexes_;
  std::uint64_t range_bytes_;
  std::uint32_t wait_ms_;
  bool is_up_to_;
  bool is_receiving_ = false;
  std::vector<Code> outcomes_;
  // While a GPU copies, or the server's device may write; kOk: not.
  Error cancelled_{Code::kOk, {}};
  Transfer transfer_;  // of the items whose outcome is kOk
};

Error broken(const char* what) { return {Code::kProtocol, what}; }

Code GetPart::start(Line& line) {
  const auto& spec = batch_->spec;
  GetRequest get;
  get.wait_ms = spec.wait_ms;
  get.lease_id = spec.lease_id;
  get.ranges.items = {
      {.value_bytes = spec.value_bytes, .value_offset = spec.value_offset, .bytes = range_bytes_}};
  for (const auto index : indexes_) get.keys.push_back(spec.keys[index]);
  // A GPU takes small values from the pool as well.
  std::uint16_t flags = batch_->gpu() == nullptr ? kFlagGetTakesCopy : std::uint16_t{0};
  if (is_up_to_) flags |= kFlagGetUpTo;
  const Body body = encode(get);
  // Of a value whose size is not known yet, its memory cannot be shown.
  if (is_up_to_ || !line.link.exposes()) {
    return line.stream.send(Opcode::kGet, line.request_id, body, flags);
  }
  transfer_ = {};
  for (const auto index : indexes_) transfer_.items.push_back(batch_->segments(index));
  auto exposed = line.link.expose(transfer_, body);
  if (!exposed) {
    fail(exposed.error());
    return Code::kSetup;
  }
  if (exposed->empty()) return line.stream.send(Opcode::kGet, line.request_id, body, flags);
  const Code sent = line.stream.send(Opcode::kGet, line.request_id, std::move(*exposed),
                                     static_cast<std::uint16_t>(flags | kFlagGetExposed));
  if (sent != Code::kOk) transfer_.shown.reset();
  return sent;
}

Result<Step> GetPart::on_frame(const FrameHeader& header, Bytes body, Line& line) {
  if (header.opcode != Opcode::kData || is_receiving_) {
    return broken("the server answered a get with a frame that does not belong there");
  }
  transfer_.is_placed = transfer_.shown != nullptr && (header.flags & kFlagDataPlaced) != 0;
  transfer_.shown.reset();  // the server has answered: it writes no more
  if (transfer_.is_placed) line.counters.rdma_bytes.fetch_add(bulk_bytes());
  if (cancelled_.code != Code::kOk) fail(cancelled_);
  const bool has_extents = line.link.shares_memory() && (header.flags & kFlagDataCopied) == 0;
  const bool has_payload = !has_extents && !transfer_.is_placed;
  auto data = decode_data(body, has_extents);
  if (!data || data->outcomes.size() != indexes_.size()) return broken("DATA is malformed");
  const auto found_bytes = sum_found(data->found);
  if (!found_bytes) return broken("DATA has another range than was asked for");
  const auto expected = has_payload ? *found_bytes : std::uint64_t{0};
  if (header.payload_bytes != expected) return broken("DATA has another size than was asked for");
  is_receiving_ = true;
  if (batch_ == nullptr) {
    if (has_extents) line.link.refuse(line.request_id);
    transfer_.payload = std::make_unique<Discard>();
    return header.payload_bytes > 0 ? Step::kWait : Step::kDone;
  }
  return receive(std::move(*data), header.payload_bytes, line);
}

// The bytes of all that was found; none: one of them has another range than was asked for.
std::optional<std::uint64_t> GetPart::sum_found(
    const std::vector<FoundItem>& found) const noexcept {
  std::uint64_t sum = 0;
  for (const auto& item : found) {
    const bool is_shorter = is_up_to_ && item.bytes > 0 && item.bytes < range_bytes_;
    if (item.bytes != range_bytes_ && !is_shorter) return std::nullopt;
    sum += item.bytes;
  }
  return sum;
}

Result<Step> GetPart::receive(DataReply data, std::uint64_t payload_bytes, Line& line) {
  outcomes_ = std::move(data.outcomes);
  transfer_.request_id = line.request_id;
  transfer_.items.clear();
  transfer_.extents = std::move(data.extents);
  for (const auto& item : data.found) transfer_.checksums.push_back(item.checksum);
  for (std::size_t i = 0; i < indexes_.size(); ++i) {
    if (outcomes_[i] != Code::kOk) continue;
    const auto& item = data.found[transfer_.items.size()];
    auto segments = batch_->segments(indexes_[i]);
    if (is_up_to_) {
      segments.segment_bytes = item.bytes;
      batch_->value_bytes[indexes_[i]] = item.value_bytes;
    }
    transfer_.items.push_back(segments);
  }
  if (transfer_.items.empty()) return finish(line);
  const auto moved = line.link.receive(transfer_);
  if (payload_bytes == 0) return after_move(moved, line);
  if (moved) return Step::kWait;
  transfer_.payload = std::make_unique<Discard>();
  const auto step = give_up(moved.error(), line);
  return step ? Result<Step>(Step::kWait) : step;
}

Result<Step> GetPart::after_move(Result<Moved> moved, Line& line) {
  if (!moved) return give_up(moved.error(), line);
  if (moved.value() == Moved::kLater) return Step::kWait;
  return finish(line);
}

// If a GPU has failed, and the connection is well, only this part ends.
Result<Step> GetPart::give_up(const Error& error, Line& line) {
  if (error.code != Code::kSetup) return error;
  if (!transfer_.extents.empty() && !transfer_.is_let_go) line.link.refuse(line.request_id);
  fail(error);
  return Step::kDone;
}

Result<Step> GetPart::on_moved(Line& line) {
  if (batch_ == nullptr) return Step::kDone;
  return after_move(line.link.unpack(transfer_), line);
}

Result<Step> GetPart::on_copied(Line& line) {
  auto moved = line.link.received(transfer_);
  if (cancelled_.code == Code::kOk) return after_move(std::move(moved), line);
  fail(cancelled_);
  if (!moved) return give_up(moved.error(), line);
  return Step::kDone;
}

Step GetPart::finish(Line& line) {
  if (batch_ == nullptr) return Step::kDone;
  KeyList corrupt;
  std::size_t found = 0;
  for (std::size_t i = 0; i < indexes_.size(); ++i) {
    if (outcomes_[i] == Code::kOk && transfer_.is_corrupt[found++]) {
      outcomes_[i] = Code::kCorrupt;
      corrupt.add(batch_->spec.keys[indexes_[i]]);
    }
    batch_->outcomes[indexes_[i]] = outcomes_[i];
  }
  if (!corrupt.empty()) {
    // Nobody else shall find it: the server looks itself, and drops what is damaged there.  Then a
    // new write can cure it.
    line.counters.corrupt.fetch_add(corrupt.size(), std::memory_order_relaxed);
    CallSpec spec;
    spec.opcode = Opcode::kSuspect;
    spec.keys = std::move(corrupt);
    line.follow_ups.push_back(make_call_request(std::make_unique<Call>(std::move(spec))));
  }
  std::exchange(batch_, nullptr)->end_part(nullptr);
  return Step::kDone;
}

void GetPart::cancel(const Error& reason, Line& line) {
  if (batch_ != nullptr && (transfer_.copy || transfer_.shown)) {
    cancelled_ = reason;  // the segments are still written: on_copied() or DATA ends the part
    return;
  }
  if (batch_ != nullptr && is_receiving_) line.link.drop(transfer_);
  fail(reason);
}

void GetPart::fail(const Error& reason) {
  if (batch_ == nullptr) return;
  // Who has given up hears so, whatever fenced the memory in the end.
  const Error& why = cancelled_.code == Code::kOk ? reason : cancelled_;
  for (const auto index : indexes_) batch_->outcomes[index] = why.code;
  std::exchange(batch_, nullptr)->end_part(&why);
}

}  // namespace

std::unique_ptr<Request> make_get_request(Batch& batch, std::vector<std::uint32_t> indexes) {
  return std::make_unique<GetPart>(batch, std::move(indexes));
}

}  // namespace infinistore
