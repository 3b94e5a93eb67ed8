// Calls: small requests with one reply each, repeated while more keys than fit one are left.
#include <algorithm>

#include "core/client/request.h"
#include "core/wire/codec.h"

namespace infinistore {
namespace {

Error broken(const char* what) { return {Code::kProtocol, what}; }

class CallPart final : public Request {
 public:
  explicit CallPart(Call& call) : call_(&call) {}
  explicit CallPart(std::unique_ptr<Call> call) : call_(call.get()), own_(std::move(call)) {
    call_->begin(0, 1, nullptr);
  }
  ~CallPart() override { fail({Code::kCancelled, "cancelled"}); }

  Lane lane() const noexcept override { return Lane::kCall; }
  std::uint64_t put_bytes() const noexcept override { return 0; }
  std::uint64_t bulk_bytes() const noexcept override { return 0; }
  Nanos patience() const noexcept override { return 0; }
  bool uses_gpu() const noexcept override { return false; }
  Payload* payload() noexcept override { return nullptr; }
  std::uint64_t operation_id() const noexcept override {
    return call_ == nullptr ? 0 : call_->id();
  }

  Code start(Line& line) override;
  Result<Step> on_frame(const FrameHeader& header, Bytes body, Line& line) override;
  Result<Step> on_moved(Line&) override { return Step::kWait; }
  Result<Step> on_copied(Line&) override { return Step::kWait; }
  void cancel(const Error& reason, Line&) override { fail(reason); }
  void fail(const Error& reason) override {
    if (call_ != nullptr) std::exchange(call_, nullptr)->end_part(&reason);
  }

 private:
  Result<bool> take(const FrameHeader& header, Bytes body, Line& line);
  Result<bool> take_match(Bytes body, Line& line);
  Result<bool> take_outcomes(Bytes body);
  std::size_t part_count() const noexcept;
  std::size_t whole_count() const noexcept {
    return call_->spec.opcode == Opcode::kLease ? call_->spec.lease_ids.size()
                                                : call_->spec.keys.size();
  }

  Call* call_;  // nullptr: it has ended
  std::unique_ptr<Call> own_;
  Opcode opcode_ = call_->spec.opcode;
  std::size_t begin_ = 0;  // keys, or lease ids, that are answered
};

// Keys, or lease ids, of the next frame: whole blocks of a MATCH.
std::size_t CallPart::part_count() const noexcept {
  const std::size_t group = call_->spec.group;
  return std::min(whole_count() - begin_, kBatchKeysMax / group * group);
}

Code CallPart::start(Line& line) {
  const auto& spec = call_->spec;
  Body body;
  if (opcode_ == Opcode::kMatch) {
    body = encode(MatchRequest{.lease_ms = spec.lease_ms,
                               .group = spec.group,
                               .keys = spec.keys.views(begin_, part_count())});
  } else if (opcode_ == Opcode::kLease) {
    const auto ids = std::span(spec.lease_ids).subspan(begin_, part_count());
    body = encode(LeaseRequest{.lease_ms = spec.lease_ms, .lease_ids = {ids.begin(), ids.end()}});
  } else if (opcode_ != Opcode::kStats && opcode_ != Opcode::kPing) {
    body = encode(KeysRequest{.keys = spec.keys.views(begin_, part_count())});
  }
  return line.stream.send(opcode_, line.request_id, std::move(body));
}

Result<Step> CallPart::on_frame(const FrameHeader& header, Bytes body, Line& line) {
  const auto has_more = take(header, body, line);
  if (!has_more) return has_more.error();
  if (has_more.value()) return Step::kAgain;
  if (call_ != nullptr) std::exchange(call_, nullptr)->end_part(nullptr);
  return Step::kDone;
}

// Whether another frame has to be sent.
Result<bool> CallPart::take(const FrameHeader& header, Bytes body, Line& line) {
  if (opcode_ == Opcode::kMatch && header.opcode == Opcode::kMatched) return take_match(body, line);
  if (opcode_ == Opcode::kStats && header.opcode == Opcode::kCounters) {
    auto counters = decode_counters(body);
    if (!counters) return broken("COUNTERS is malformed");
    if (call_ != nullptr) call_->counters = std::move(counters->counters);
    return false;
  }
  if (opcode_ != Opcode::kMatch && opcode_ != Opcode::kStats && header.opcode == Opcode::kResult) {
    return take_outcomes(body);
  }
  return broken("the server's answer does not belong to the call");
}

Result<bool> CallPart::take_match(Bytes body, Line& line) {
  const auto matched = decode_matched(body);
  if (!matched) return broken("MATCHED is malformed");
  if (call_ == nullptr) {
    // Nobody will read under this lease: without a word it would pin the keys until its deadline.
    if (matched->lease_id != 0) {
      CallSpec release;
      release.opcode = Opcode::kLease;
      release.lease_ids = {matched->lease_id};
      line.follow_ups.push_back(make_call_request(std::make_unique<Call>(std::move(release))));
    }
    return false;
  }
  const std::size_t asked = part_count() / call_->spec.group;
  if (matched->blocks > asked) return broken("MATCHED has more blocks than were asked for");
  call_->blocks += matched->blocks;
  if (matched->lease_id != 0) call_->lease_ids.push_back(matched->lease_id);
  begin_ += part_count();
  return matched->blocks == asked && begin_ < whole_count();
}

Result<bool> CallPart::take_outcomes(Bytes body) {
  const auto result = decode_result(body);
  if (!result) return broken("RESULT is malformed");
  if (call_ == nullptr) return false;
  if (opcode_ == Opcode::kPing) return false;
  if (result->outcomes.size() != part_count()) return broken("RESULT is malformed");
  if (opcode_ != Opcode::kAbort) {  // several channels answer it
    auto& all = call_->outcomes;
    all.insert(all.end(), result->outcomes.begin(), result->outcomes.end());
  }
  begin_ += part_count();
  return begin_ < whole_count();
}

}  // namespace

std::unique_ptr<Request> make_call_request(Call& call) { return std::make_unique<CallPart>(call); }

std::unique_ptr<Request> make_call_request(std::unique_ptr<Call> call) {
  return std::make_unique<CallPart>(std::move(call));
}

}  // namespace infinistore
