// PUT -> GRANT -> FILL -> RESULT, for some keys of a batch.
#include <algorithm>

#include "core/client/request.h"
#include "core/wire/codec.h"

namespace infinistore {
namespace {

// The server has too much unsealed at this moment: asked again after 1, 2, 4 ... ms, 7 times at
// most, since what others have in flight is sealed in a few of them.  After that the caller may
// decide.
constexpr Nanos kDelayMin = kMillisecond;
constexpr Nanos kDelayMax = 64 * kMillisecond;

class PutPart final : public Request {
 public:
  PutPart(Batch& batch, std::vector<std::uint32_t> indexes)
      : batch_(&batch),
        indexes_(std::move(indexes)),
        bytes_(indexes_.size() * batch.spec.range_bytes()),
        pool_bytes_(indexes_.size() * batch.spec.pool_bytes()) {}

  Lane lane() const noexcept override { return Lane::kBulk; }
  std::uint64_t put_bytes() const noexcept override { return pool_bytes_; }
  std::uint64_t bulk_bytes() const noexcept override { return bytes_; }
  Nanos patience() const noexcept override { return 0; }
  bool uses_gpu() const noexcept override { return batch_ != nullptr && batch_->gpu() != nullptr; }
  Payload* payload() noexcept override { return nullptr; }
  std::uint64_t operation_id() const noexcept override {
    return batch_ == nullptr ? 0 : batch_->id();
  }

  Code start(Line& line) override;
  Result<Step> on_frame(const FrameHeader& header, Bytes body, Line& line) override;
  Result<Step> on_moved(Line& line) override;
  Result<Step> on_copied(Line& line) override;
  Nanos delay() const noexcept override { return delay_; }
  void on_refused() override;
  void cancel(const Error& reason, Line& line) override;
  void fail(const Error& reason) override;

 private:
  enum class State { kAsked, kFilling, kFilled };

  Result<Step> on_grant(Bytes body, Line& line);
  Result<Step> on_result(Bytes body);
  void fill_nothing(std::size_t granted, Line& line) const;
  Result<Step> after_fill(Result<Moved> moved, Line& line);

  Batch* batch_;  // nullptr: the part has ended
  std::vector<std::uint32_t> indexes_;
  std::uint64_t bytes_;
  std::uint64_t pool_bytes_;
  State state_ = State::kAsked;
  Transfer transfer_;
  Error cancelled_{Code::kOk, {}};  // kOk: not
  Nanos delay_ = 0;                 // before the last repetition
};

Error broken(const char* what) { return {Code::kProtocol, what}; }

Code PutPart::start(Line& line) {
  const auto& spec = batch_->spec;
  PutRequest put;
  put.on_exists = spec.on_exists;
  put.ranges.items = {{.value_bytes = spec.value_bytes,
                       .value_offset = spec.value_offset,
                       .bytes = spec.range_bytes()}};
  for (const auto index : indexes_) put.keys.push_back(spec.keys[index]);
  if (!spec.parents.empty()) {
    for (const auto index : indexes_) {
      put.parents.push_back(spec.parents[index]);
      put.depths.push_back(spec.depths[index]);
    }
  }
  return line.stream.send(Opcode::kPut, line.request_id, encode(put));
}

Result<Step> PutPart::on_frame(const FrameHeader& header, Bytes body, Line& line) {
  if (header.opcode == Opcode::kGrant && state_ == State::kAsked) return on_grant(body, line);
  if (header.opcode == Opcode::kResult && transfer_.shown) {
    on_refused();  // likewise: the server has read it
    line.counters.rdma_bytes.fetch_add(bytes_);
    if (cancelled_.code != Code::kOk) fail(cancelled_);
  }
  if (header.opcode == Opcode::kResult && state_ == State::kFilled) return on_result(body);
  return broken("the server answered a put with a frame that does not belong there");
}

Result<Step> PutPart::on_grant(Bytes body, Line& line) {
  auto grant = decode_grant(body, line.link.shares_memory());
  if (!grant || grant->outcomes.size() != indexes_.size()) return broken("GRANT is malformed");
  const auto granted = std::count(grant->outcomes.begin(), grant->outcomes.end(), Code::kOk);
  state_ = State::kFilled;
  if (granted == 0) return Step::kWait;
  if (batch_ == nullptr) {
    fill_nothing(static_cast<std::size_t>(granted), line);
    return Step::kWait;
  }
  transfer_.request_id = line.request_id;
  transfer_.extents = std::move(grant->extents);
  for (std::size_t i = 0; i < indexes_.size(); ++i) {
    if (grant->outcomes[i] == Code::kOk) transfer_.items.push_back(batch_->segments(indexes_[i]));
  }
  return after_fill(line.link.fill(transfer_), line);
}

void PutPart::fill_nothing(std::size_t granted, Line& line) const {
  FillRequest nothing{.granted_count = static_cast<std::uint32_t>(granted), .checksums = {}};
  if (line.link.shares_memory()) nothing.checksums.resize(granted);
  line.stream.send(Opcode::kFill, line.request_id, encode(nothing), kFlagFillCancelled);
}

Result<Step> PutPart::after_fill(Result<Moved> moved, Line& line) {
  if (moved) {
    state_ = moved.value() == Moved::kLater ? State::kFilling : State::kFilled;
    return Step::kWait;
  }
  if (moved.code() != Code::kSetup) return moved.error();
  // A GPU has failed, and the connection is well.
  state_ = State::kFilled;
  fill_nothing(transfer_.items.size(), line);
  fail(moved.error());
  return Step::kWait;
}

Result<Step> PutPart::on_copied(Line& line) {
  if (cancelled_.code == Code::kOk) return after_fill(line.link.filled(transfer_), line);
  state_ = State::kFilled;
  fill_nothing(transfer_.items.size(), line);
  fail(cancelled_);
  return Step::kWait;
}

Result<Step> PutPart::on_moved(Line&) {
  state_ = State::kFilled;
  transfer_.payload.reset();
  if (cancelled_.code != Code::kOk) fail(cancelled_);
  return Step::kWait;
}

Result<Step> PutPart::on_result(Bytes body) {
  const auto result = decode_result(body);
  if (!result || result->outcomes.size() != indexes_.size()) return broken("RESULT is malformed");
  if (batch_ == nullptr) return Step::kDone;
  std::vector<std::uint32_t> overloaded;
  for (std::size_t i = 0; i < indexes_.size(); ++i) {
    batch_->outcomes[indexes_[i]] = result->outcomes[i];
    if (result->outcomes[i] == Code::kOverloaded) overloaded.push_back(indexes_[i]);
  }
  if (!overloaded.empty() && delay_ < kDelayMax) {
    delay_ = std::max(2 * delay_, kDelayMin);
    indexes_ = std::move(overloaded);
    transfer_ = {};
    state_ = State::kAsked;
    return Step::kAgain;
  }
  std::exchange(batch_, nullptr)->end_part(nullptr);
  return Step::kDone;
}

void PutPart::on_refused() {
  if (!transfer_.shown) return;
  transfer_.shown.reset();
  state_ = State::kFilled;
}

void PutPart::cancel(const Error& reason, Line&) {
  if (state_ == State::kFilling) {
    // The socket, a GPU or the server's device still reads the segments: on_moved(), on_copied() or
    // RESULT ends the part.
    cancelled_ = reason;
  } else {
    fail(reason);
  }
}

void PutPart::fail(const Error& reason) {
  if (batch_ == nullptr) return;
  // Who has given up hears so, whatever fenced the memory in the end.
  const Error& why = cancelled_.code == Code::kOk ? reason : cancelled_;
  for (const auto index : indexes_) batch_->outcomes[index] = why.code;
  std::exchange(batch_, nullptr)->end_part(&why);
}

}  // namespace

std::unique_ptr<Request> make_put_request(Batch& batch, std::vector<std::uint32_t> indexes) {
  return std::make_unique<PutPart>(batch, std::move(indexes));
}

}  // namespace infinistore
