#pragma once
// Channel: one connection to the server, and the thread that serves it.
//
// Requests wait in lanes, go out in bounded numbers, and end by their answer, by a deadline, or
// with the connection; a request that comes after that dials again.  Public calls are for any
// thread; all else is done by one thread at a time, which holds `turn_`: the channel's own, which
// sleeps while nothing happens, or a caller with a lone small request, who sends it himself and
// then waits for the answer at the socket.  That saves him both ways through the other thread:
// two of the four wake-ups of a round trip.

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/poller.h"
#include "core/client/dial.h"
#include "core/client/options.h"
#include "core/client/request.h"
#include "core/device/gate.h"
#include "core/transport/link.h"
#include "core/transport/stream.h"

namespace infinistore {

// Of the pool, one channel's puts in flight at most: what is granted and not yet sealed counts
// against the server's bound on unsealed bytes (kStagedPercentMax), which all clients share.
inline constexpr std::uint64_t kPutShareOfPool = 16;

// While requests come and go, the thread looks around so often, whether it is woken or not.
inline constexpr Nanos kLookAgain = 20 * kMillisecond;

class Channel final : public StreamOwner {
 public:
  // `choice` may be other than the options': what this channel dials.
  Channel(const ClientOptions& options, const ClientIdentity& identity, TransportChoice choice,
          const Clock& clock, ClientCounters& counters, Crew& crew, RdmaClient& rdma);
  ~Channel() override;  // as stop()

  // Starts the thread, which dials at once.
  void start();
  // Waits for the first dialling; kOk, or why it failed.
  Error wait_dialled() NO_THREAD_SAFETY_ANALYSIS;  // it knows no std::unique_lock

  // `is_awaited`: by wait_at_socket(), soon.  `gate`: they start once it opens; it outlives them.
  void submit(std::vector<std::unique_ptr<Request>> requests, bool is_awaited, Gate* gate);
  // Likewise, but always by the thread: the caller has no time to send them.
  void leave_to_thread(std::vector<std::unique_ptr<Request>> requests, Gate* gate);
  // A GPU's batch is about to come: wakes thread and server, and keeps the thread awake for it.
  void rouse();
  Waker& waker() noexcept { return poller_; }  // of its thread
  // Shows the server's pool to a GPU now, rather than when it is used; over TCP there is none.
  Error prepare(const Gpu& gpu);
  void cancel(std::uint64_t operation_id);
  // If this operation is all that is in flight: waits for its answer at the socket, in place of the
  // thread, but not for long.  Whoever waits for it calls this first; without patience, whoever
  // asks whether it has ended.
  void wait_at_socket(const Operation& operation, Nanos patience);
  // Ends every request with kClosed, says goodbye, and joins the thread.
  void stop();

  ServerInfo server() const;  // of the last connection

  // In a forked child, which has no thread of ours: lets the server see the parent's end.
  void close_after_fork() noexcept;

 private:
  struct Flight {
    std::unique_ptr<Request> request;
    Nanos started = 0;
    Nanos deadline = 0;    // whatever happens
    std::size_t held = 0;  // of its answers, those in `held_`
  };
  struct Queue {
    std::deque<std::unique_ptr<Request>> waiting;
    std::size_t in_flight = 0;
    std::size_t in_flight_max = 0;
  };
  struct Delayed {
    std::unique_ptr<Request> request;
    Nanos due = 0;
  };
  struct HeldFrame {
    FrameHeader header;
    std::vector<std::byte> body;
  };
  struct Gated {
    Gate* gate;
    std::vector<std::unique_ptr<Request>> requests;
  };
  struct Inbox {
    std::vector<std::unique_ptr<Request>> requests;
    std::vector<Gated> gated;
    std::vector<std::uint64_t> cancels;
    bool stops = false;
  };

  Payload* on_frame(const FrameHeader& header, Bytes body) override;
  void on_payload(const FrameHeader& header) override;
  void on_sent(std::uint64_t request_id) override;
  void on_close(const Error& reason) override;

  void run();
  bool stays_awake(Nanos now) const;
  bool prepare();
  void react();
  bool send_alone(std::vector<std::unique_ptr<Request>>& requests, bool is_awaited);
  bool begin_here(std::vector<std::unique_ptr<Request>>& requests);
  bool is_idle() const;
  bool none_waits() const;
  bool may_send_here() const;
  void await_answer(const Operation& operation, Nanos until);
  bool take_inbox();
  void cancel_here(std::uint64_t operation_id);
  void connect_if_wanted();
  void connected(Dialled dialled);
  void tell_dialled(const Error& outcome);
  void pump();
  bool may_start(const Queue& queue) const;
  void release_delayed(Nanos now);
  void release_gated();
  void fail_gated(const Error& reason);
  void take_copied();
  Nanos next_look_at_gpu(Nanos now) const;
  void advance(std::uint64_t request_id, Result<Step> step);
  std::unique_ptr<Request> land(std::uint64_t request_id);
  void refused(const FrameHeader& header, Bytes body);
  static Nanos deadline_after(const Request& request);
  Nanos due(std::uint64_t request_id, const Flight& flight) const;
  Nanos next_deadline(Nanos now) const;
  void check_deadlines(Nanos now);
  void note_progress(Nanos now, Nanos late_by);
  void drop_connection();
  void fail_waiting(const Error& reason);
  void fail_flights(const Error& reason);
  void end_all();
  Queue& queue_of(const Request& request) {
    return queues_[static_cast<std::size_t>(request.lane())];
  }
  Line line(std::uint64_t request_id);
  void collect_follow_ups();
  bool brings_copies(const FrameHeader& header, const Request& request) const;
  Payload* deal_with(const FrameHeader& header, Bytes body);
  void deal_with_one_held();

  const ClientOptions options_;
  const ClientIdentity identity_;
  const TransportChoice choice_;
  const Clock& clock_;
  ClientCounters& counters_;
  Crew& crew_;
  RdmaClient& rdma_;

  mutable Mutex mutex_;
  std::condition_variable dialled_changed_;
  Inbox inbox_ GUARDED_BY(mutex_);
  bool is_stopped_ GUARDED_BY(mutex_) = false;
  std::optional<Error> first_dial_ GUARDED_BY(mutex_);
  ServerInfo server_ GUARDED_BY(mutex_);

  // The rest belongs to who holds `turn_`, save what is said to be atomic or the poller's own.
  Mutex turn_;
  std::uint64_t others_turns_ = 0;  // taken by callers
  Nanos active_at_ = 0;             // when something was in flight last
  Nanos looks_at_ = 0;              // when the thread comes round by itself; 0: never
  Poller poller_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Link> link_;
  std::array<Queue, kLaneCount> queues_;
  std::unordered_map<std::uint64_t, Flight> flights_;
  std::vector<Delayed> delayed_;
  std::vector<Gated> gated_;  // by work on the callers' streams
  std::vector<std::unique_ptr<Request>> follow_ups_;
  bool has_more_to_start_ = false;
  std::deque<HeldFrame> held_;  // what they bring takes long: one between two looks at the socket
  std::uint64_t next_id_ = 3;   // HELLO was 1, ATTACH may have been 2
  std::uint64_t put_bytes_in_flight_ = 0;
  std::uint64_t put_bytes_max_ = 0;
  std::uint64_t moved_bytes_ = 0;
  Nanos progress_at_ = 0;
  Error close_reason_{Code::kOk, {}};
  Nanos retry_at_ = 0;
  Nanos backoff_ = 0;
  Error dial_failure_{Code::kOk, {}};

  std::atomic<Nanos> roused_at_{std::numeric_limits<Nanos>::min() / 2};
  std::atomic<int> socket_fd_{-1};
  std::thread thread_;
};

}  // namespace infinistore
