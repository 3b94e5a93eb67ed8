#pragma once
// Worker: one thread, its poller, and the sessions it owns.
//
// Sleeps in the kernel while nothing happens; has timers only while something waits.  What other
// threads want of it goes through its inbox.

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/poller.h"
#include "core/server/acceptor.h"
#include "core/server/session/session.h"

namespace infinistore {

class Worker final : public SessionHost {
 public:
  Worker(std::uint32_t index, ServerContext& context);
  ~Worker() override;

  void start();
  // From any thread, each once the worker has started.
  void adopt(const Transport& transport, UniqueFd socket, SessionId id);
  void tell(const Waiter& waiter);
  void drain();  // waiting gets answer, and no more begin
  bool is_busy() const noexcept { return busy_sessions_.load() > 0; }
  void stop();  // ends all sessions and joins the thread

  // Before start(): this worker accepts what comes to `listener`.
  void listen(std::unique_ptr<Acceptor> acceptor) { acceptors_.push_back(std::move(acceptor)); }
  void stop_listening();  // from any thread

  Poller& poller() noexcept { return poller_; }
  WorkerMetrics& metrics() noexcept override { return metrics_; }  // others only read them

 private:
  class Grave;
  struct Arrival {
    const Transport* transport = nullptr;
    UniqueFd socket;
    SessionId id = 0;
  };
  struct Inbox {
    std::vector<Arrival> arrivals;
    std::vector<Waiter> waiters;
    bool drains = false;
    bool stops_listening = false;
    bool stops = false;
  };

  void arm(Session& session, Nanos deadline) override;
  void retire(Session& session) override;
  void bury(UniqueFd fence, std::vector<Quarantine> remains) override;
  std::uint32_t index() const noexcept override { return index_; }

  void run();
  bool empty_inbox();
  void begin_session(Arrival arrival);
  void fire_timers();
  void reap();
  void end_all();
  template <class Change>
  void post(Change change);

  const std::uint32_t index_;
  ServerContext& context_;
  Poller poller_;
  WorkerMetrics metrics_;
  std::vector<std::unique_ptr<Acceptor>> acceptors_;

  std::unordered_map<SessionId, std::unique_ptr<Session>> sessions_;
  std::set<std::pair<Nanos, SessionId>> timers_;
  std::vector<SessionId> retired_;
  std::vector<std::unique_ptr<Grave>> graves_;
  std::atomic<std::size_t> busy_sessions_{0};
  bool is_draining_ = false;

  Mutex inbox_mutex_;
  Inbox inbox_ GUARDED_BY(inbox_mutex_);
  std::thread thread_;
};

}  // namespace infinistore
