#include "core/server/session/session.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/check.h"

namespace infinistore {
namespace {

constexpr Nanos kHelloTime = 2 * kSecond;
constexpr Nanos kFarewellTime = 250 * kMillisecond;  // for a refused peer to read why, and to end

}  // namespace

Session::Session(SessionId id, ServerContext& context, SessionHost& host)
    : id_(id),
      context_(context),
      host_(host),
      puts_(context, host.metrics()),
      gets_(context, host.metrics()),
      suspects_(context, host.metrics()) {}

Session::~Session() = default;

bool Session::begin(const Transport& transport, UniqueFd socket, Poller& poller) {
  auto made = transport.accept(
      std::move(socket),
      {.poller = poller, .pool = context_.store.pool(), .rdma = context_.rdma, .tls = context_.tls},
      *this);
  if (!made) {
    context_.log.write_limited(LogLevel::kWarning, made.error().message, context_.clock,
                               context_.last_peer_line);
    return false;
  }
  connection_ = std::move(made).value();
  is_shared_memory_ = connection_->limits().has_extents;
  hello_deadline_ = context_.clock.now() + kHelloTime;
  host_.arm(*this, hello_deadline_);
  connection_->deliver();
  return true;
}

void Session::on_request(const FrameHeader& header, Bytes body) {
  if (state_ != State::kAwaitsHello && state_ != State::kServes) return;
  host_.metrics().requests[static_cast<std::size_t>(header.opcode)].add();
  if (header.request_id <= last_request_id_) {
    refuse(Code::kProtocol, "a request id is not above all before it");
    return;
  }
  last_request_id_ = header.request_id;
  if (state_ == State::kAwaitsHello && header.opcode != Opcode::kHello) {
    refuse(Code::kProtocol, "HELLO must come first");
  } else if (state_ == State::kServes && header.opcode == Opcode::kHello) {
    refuse(Code::kProtocol, "HELLO came a second time");
  } else if (!handle(header, body)) {
    refuse(Code::kProtocol, "the body of opcode " +
                                std::to_string(static_cast<unsigned>(header.opcode)) +
                                " is malformed, or the opcode is not a request");
  }
  count_open();
}

void Session::count_open() noexcept {
  auto& all = host_.metrics().open_requests;
  const auto open = open_count();
  all.store(all.load(std::memory_order_relaxed) + open - counted_open_, std::memory_order_relaxed);
  counted_open_ = open;
}

void Session::on_pulled(std::uint64_t request_id, Code outcome,
                        std::span<const std::uint64_t> checksums) {
  puts_.on_pulled(*connection_, request_id, outcome, checksums);
  if (puts_.has_staged()) arm_progress(context_.clock.now());
  count_open();
}

void Session::on_pushed(std::uint64_t request_id) {
  gets_.on_pushed(request_id);
  count_open();
}

void Session::on_violation(const char* what) { refuse(Code::kProtocol, what); }

void Session::on_failure(const Error& reason) {
  context_.log.write_limited(LogLevel::kWarning, "closed a connection: " + reason.message,
                             context_.clock, context_.last_peer_line);
  refuse(reason.code, reason.message);
}

void Session::on_close(const Error& reason) {
  KV_CHECK(state_ != State::kEnded);
  if (state_ != State::kRefused) note_end(reason);
  state_ = State::kEnded;
  gets_.drop_all();
  suspects_.drop_all();
  auto fence = connection_->take_fence();
  if (context_.options.without_fencing) fence = {};
  auto remains = puts_.drop_all(!fence);
  if (!remains.empty()) {
    host_.metrics().unfenced_ends.add();
    host_.bury(std::move(fence), std::move(remains));
  }
  context_.leases.drop_owner(id_);
  count_open();
  host_.retire(*this);
}

// Once: with the refusal, or with an end that had none.
void Session::note_end(const Error& reason) {
  if (reason.code != Code::kProtocol) return;
  host_.metrics().protocol_errors.add();
  context_.log.write_limited(LogLevel::kWarning, "closed a connection: " + reason.message,
                             context_.clock, context_.last_peer_line);
}

void Session::on_timer(Nanos now) {
  switch (state_) {
    case State::kAwaitsHello:
      if (now >= hello_deadline_) {
        refuse(Code::kTimeout, "HELLO did not come in time");
      } else {
        host_.arm(*this, hello_deadline_);
      }
      break;
    case State::kServes:
      if (const auto next = puts_.expire(now)) host_.arm(*this, *next);
      if (const auto next = gets_.expire(*connection_, now)) host_.arm(*this, *next);
      if (suspects_.open_count() > 0) look_at_suspects();
      check_progress(now);
      break;
    case State::kRefused:
      connection_->close({Code::kTimeout, "the refused peer did not read why"});
      break;
    case State::kEnded:
      break;
  }
  count_open();
  connection_->deliver();
}

// A slice; others come before the next.
void Session::look_at_suspects() {
  if (suspects_.step(*connection_)) host_.arm(*this, context_.clock.now());
}

// A peer that owes something and moves nothing is stuck, and holds memory of others.
void Session::check_progress(Nanos now) {
  if (!connection_->awaits_peer()) {
    is_watched_ = false;
    return;
  }
  if (connection_->moved_bytes() != progress_bytes_) {
    progress_bytes_ = connection_->moved_bytes();
    progress_at_ = now;
  }
  const auto timeout =
      static_cast<Nanos>(context_.options.stage_timeout_s * static_cast<double>(kSecond));
  if (now - progress_at_ < timeout) {
    host_.arm(*this, progress_at_ + timeout);
    return;
  }
  host_.metrics().stalled_sessions.add();
  refuse(Code::kTimeout, "a transfer made no progress");
}

void Session::arm_progress(Nanos now) {
  const auto timeout =
      static_cast<Nanos>(context_.options.stage_timeout_s * static_cast<double>(kSecond));
  if (!is_watched_) {
    is_watched_ = true;
    progress_bytes_ = connection_->moved_bytes();
    progress_at_ = now;
  }
  host_.arm(*this, now + timeout);
}

void Session::on_write_end(const Waiter& waiter) {
  if (state_ != State::kServes) return;
  gets_.on_write_end(*connection_, waiter);
  count_open();
  if (gets_.is_busy()) arm_progress(context_.clock.now());
  connection_->deliver();
}

void Session::stop_waiting() {
  if (state_ != State::kServes) return;
  gets_.expire(*connection_, std::numeric_limits<Nanos>::max());
  count_open();
  connection_->deliver();
}

void Session::end(const Error& reason) {
  if (state_ == State::kEnded) return;
  if (state_ != State::kRefused) refuse(reason.code, reason.message);
  connection_->close(reason);
  connection_->deliver();
}

void Session::answer(std::uint64_t request_id, std::vector<Code> outcomes) {
  connection_->send(Opcode::kResult, request_id,
                    encode(ResultReply{.outcomes = std::move(outcomes)}));
}

void Session::fail_request(std::uint64_t request_id, Code code, std::string_view message) {
  connection_->send(Opcode::kError, request_id,
                    encode(ErrorReply{.code = code, .message = message}));
}

void Session::refuse(Code code, std::string message) {
  if (state_ == State::kRefused || state_ == State::kEnded) return;
  state_ = State::kRefused;
  const Error reason{code, std::move(message)};
  note_end(reason);
  connection_->refuse(reason);
  host_.arm(*this, context_.clock.now() + kFarewellTime);
}

}  // namespace infinistore
