#include "core/server/worker.h"

#include <sys/epoll.h>

#include <algorithm>

#include "core/base/check.h"
#include "core/base/thread.h"

namespace infinistore {

// Memory that a vanished writer may still touch, until its fence says that it cannot.
class Worker::Grave final : public PollTarget {
 public:
  Grave(UniqueFd fence, std::vector<Quarantine> remains, Poller& poller)
      : fence_(std::move(fence)), remains_(std::move(remains)), poller_(poller) {
    // If it cannot be watched the memory stays out of use: less of it is better than torn values.
    poller_.add(fence_.get(), EPOLLIN, *this);
  }
  ~Grave() override { poller_.remove(fence_.get(), *this); }

  void on_ready(std::uint32_t) override {
    poller_.remove(fence_.get(), *this);
    remains_.clear();
  }
  bool is_empty() const noexcept { return remains_.empty(); }

 private:
  UniqueFd fence_;
  std::vector<Quarantine> remains_;
  Poller& poller_;
};

Worker::Worker(std::uint32_t index, ServerContext& context) : index_(index), context_(context) {}

Worker::~Worker() { stop(); }

void Worker::start() {
  const std::string name = "is-worker-" + std::to_string(index_);
  thread_ = start_thread(name.c_str(), [this] { run(); });
}

template <class Change>
void Worker::post(Change change) {
  {
    const MutexLock lock(inbox_mutex_);
    change(inbox_);
  }
  poller_.wake();
}

void Worker::adopt(const Transport& transport, UniqueFd socket, SessionId id) {
  ++metrics_.sessions;  // already now: the limit counts it
  post([&](Inbox& inbox) { inbox.arrivals.push_back({&transport, std::move(socket), id}); });
}

void Worker::tell(const Waiter& waiter) {
  post([&](Inbox& inbox) { inbox.waiters.push_back(waiter); });
}

void Worker::drain() {
  busy_sessions_ = 1;  // until the worker has counted
  post([](Inbox& inbox) { inbox.drains = true; });
}

void Worker::stop_listening() {
  post([](Inbox& inbox) { inbox.stops_listening = true; });
}

void Worker::stop() {
  if (!thread_.joinable()) return;
  post([](Inbox& inbox) { inbox.stops = true; });
  thread_.join();
}

void Worker::run() {
  for (;;) {
    Nanos timeout = -1;
    if (!timers_.empty()) {
      timeout = std::max<Nanos>(timers_.begin()->first - context_.clock.now(), 0);
    }
    poller_.poll(timeout);
    const bool goes_on = empty_inbox();
    fire_timers();
    reap();
    if (!goes_on) break;
  }
  end_all();
}

bool Worker::empty_inbox() {
  Inbox inbox;
  {
    const MutexLock lock(inbox_mutex_);
    std::swap(inbox, inbox_);
  }
  if (inbox.stops_listening || inbox.stops) acceptors_.clear();
  for (auto& arrival : inbox.arrivals) begin_session(std::move(arrival));
  for (const auto& waiter : inbox.waiters) {
    const auto found = sessions_.find(waiter.session_id);
    if (found != sessions_.end()) found->second->on_write_end(waiter);
  }
  if (inbox.drains) {
    is_draining_ = true;
    for (auto& [id, session] : sessions_) session->stop_waiting();
  }
  return !inbox.stops;
}

void Worker::begin_session(Arrival arrival) {
  const auto id = arrival.id;
  auto session = std::make_unique<Session>(id, context_, *this);
  auto& kept = *sessions_.emplace(id, std::move(session)).first->second;
  if (kept.begin(*arrival.transport, std::move(arrival.socket), poller_)) {
    metrics_.sessions_begun.add();
  } else {
    metrics_.sessions_refused.add();
    sessions_.erase(id);
    --metrics_.sessions;
  }
}

void Worker::arm(Session& session, Nanos deadline) {
  if (session.armed_at != 0) {
    if (session.armed_at <= deadline) return;
    timers_.erase({session.armed_at, session.id()});
  }
  session.armed_at = deadline;
  timers_.emplace(deadline, session.id());
}

void Worker::fire_timers() {
  const Nanos now = context_.clock.now();
  // Those that are due now, once: one that is armed for the past comes again after a poll.
  std::vector<SessionId> due;
  while (!timers_.empty() && timers_.begin()->first <= now) {
    due.push_back(timers_.begin()->second);
    sessions_.at(due.back())->armed_at = 0;
    timers_.erase(timers_.begin());
  }
  for (const auto id : due) sessions_.at(id)->on_timer(now);
}

void Worker::retire(Session& session) { retired_.push_back(session.id()); }

void Worker::reap() {
  for (const auto id : retired_) {
    const auto found = sessions_.find(id);
    if (found->second->armed_at != 0) timers_.erase({found->second->armed_at, id});
    sessions_.erase(found);
    --metrics_.sessions;
  }
  retired_.clear();
  std::erase_if(graves_, [](const auto& grave) { return grave->is_empty(); });
  if (!is_draining_) return;
  const auto busy = std::count_if(sessions_.begin(), sessions_.end(),
                                  [](const auto& entry) { return entry.second->is_busy(); });
  busy_sessions_ = static_cast<std::size_t>(busy);
}

void Worker::bury(UniqueFd fence, std::vector<Quarantine> remains) {
  graves_.push_back(std::make_unique<Grave>(std::move(fence), std::move(remains), poller_));
}

void Worker::end_all() {
  acceptors_.clear();
  for (auto& [id, session] : sessions_) {
    session->end({Code::kDraining, "the server is going away"});
  }
  reap();
  KV_CHECK(sessions_.empty());
  // The memory itself goes when the last process that maps it does.
  graves_.clear();
}

}  // namespace infinistore
