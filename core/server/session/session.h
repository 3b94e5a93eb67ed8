#pragma once
// Session: one client as the server sees it, from HELLO to the end of its connection.
//
// Owns what the client has begun: puts, staged values, gets, leases.  All of it ends with it.
// Belongs to its worker's thread.

#include <memory>
#include <optional>
#include <string>

#include "core/server/context.h"
#include "core/server/server_metrics.h"
#include "core/server/session/gets.h"
#include "core/server/session/puts.h"
#include "core/server/session/suspects.h"
#include "core/server/tenants.h"
#include "core/transport/transports.h"

namespace infinistore {

class Session;

// What a session needs of its worker.
class SessionHost {
 public:
  virtual ~SessionHost() = default;
  // on_timer() no later than at `deadline`; an earlier wish stands.
  virtual void arm(Session& session, Nanos deadline) = 0;
  // The session has ended: destroy it once it is not being called.
  virtual void retire(Session& session) = 0;
  // Keeps the memory that a vanished writer may still touch until `fence` polls readable.
  virtual void bury(UniqueFd fence, std::vector<Quarantine> remains) = 0;
  virtual std::uint32_t index() const noexcept = 0;
  virtual WorkerMetrics& metrics() noexcept = 0;
};

class Session final : private ConnectionOwner {
 public:
  Session(SessionId id, ServerContext& context, SessionHost& host);
  ~Session() override;

  // Takes the connection over; false, and the session is of no use, if the transport cannot.
  bool begin(const Transport& transport, UniqueFd socket, Poller& poller);

  SessionId id() const noexcept { return id_; }
  bool is_busy() const noexcept { return open_count() > 0; }

  // Each is a call from outside: an end that it caused has been told when it returns.
  void on_timer(Nanos now);
  void on_write_end(const Waiter& waiter);  // a key that a request of ours waits for is decided
  void stop_waiting();                      // draining: gets answer with what there is
  void end(const Error& reason);

  Nanos armed_at = 0;  // the worker's: when its timer is due; 0: it has none

 private:
  enum class State : std::uint8_t { kAwaitsHello, kServes, kRefused, kEnded };

  void on_request(const FrameHeader& header, Bytes body) override;
  void on_pulled(std::uint64_t request_id, Code outcome,
                 std::span<const std::uint64_t> checksums) override;
  void on_pushed(std::uint64_t request_id) override;
  void on_late() override { host_.metrics().late_messages.add(); }
  void on_violation(const char* what) override;
  void on_failure(const Error& reason) override;
  void on_close(const Error& reason) override;

  // handlers.cpp: one an opcode.  False: the body is malformed.
  bool handle(const FrameHeader& header, Bytes body);
  bool hello(const FrameHeader& header, Bytes body);
  Error admit(const Hello& hello);  // kOk: it may go on, as caller_
  bool put(const FrameHeader& header, Bytes body);
  bool get(const FrameHeader& header, Bytes body);
  bool match(const FrameHeader& header, Bytes body);
  bool exists(const FrameHeader& header, Bytes body);
  bool erase(const FrameHeader& header, Bytes body);
  bool lease(const FrameHeader& header, Bytes body);
  bool abort(const FrameHeader& header, Bytes body);
  bool stats(const FrameHeader& header, Bytes body);
  bool ping(const FrameHeader& header, Bytes body);
  std::vector<Counter> tenant_counters() const;
  bool suspect(const FrameHeader& header, Bytes body);
  bool attach(const FrameHeader& header, Bytes body);

  bool may_begin(const FrameHeader& header);  // else it has been answered
  void note_use() noexcept {
    space_use_->at.store(context_.clock.now(), std::memory_order_relaxed);
  }
  Nanos lease_deadline(std::uint32_t lease_ms) const;
  void answer(std::uint64_t request_id, std::vector<Code> outcomes);
  void fail_request(std::uint64_t request_id, Code code, std::string_view message);
  void refuse(Code code, std::string message);  // ERROR, then the end
  void note_end(const Error& reason);
  void look_at_suspects();
  void check_progress(Nanos now);
  void arm_progress(Nanos now);
  std::size_t open_count() const noexcept {
    return puts_.open_count() + gets_.open_count() + suspects_.open_count();
  }
  void count_open() noexcept;  // after whatever may have begun or ended requests

  SessionId id_;
  ServerContext& context_;
  SessionHost& host_;
  State state_ = State::kAwaitsHello;
  Caller caller_;
  bool reads_only_ = false;  // by its token, or as it asked
  NamespaceId space_ = 0;
  SpaceUse* space_use_ = nullptr;      // the store's; once it serves
  std::size_t counted_open_ = 0;       // of ours, in the worker's metrics
  std::uint64_t last_request_id_ = 0;  // the highest that began a request
  bool is_shared_memory_ = false;
  Nanos hello_deadline_ = 0;

  // Progress of a peer that owes something: last seen at `progress_at_`.
  bool is_watched_ = false;
  std::uint64_t progress_bytes_ = 0;
  Nanos progress_at_ = 0;

  Puts puts_;
  Gets gets_;
  Suspects suspects_;
  std::unique_ptr<Connection> connection_;  // ends first: it reads and writes what the others hold
};

}  // namespace infinistore
