#pragma once
// Background: the thread that makes the pool's memory ready, then ends leases on time.
//
// Sleeps while there is nothing to do.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <thread>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/store/lease_table.h"
#include "core/store/store.h"

namespace infinistore {

class Background {
 public:
  Background(Store& store, LeaseTable& leases, const Clock& clock)
      : store_(store), leases_(leases), clock_(clock) {}
  // Before start(): `step`, after each part that was populated, makes it ready for more, in steps
  // until it is false.
  void then(std::function<bool()> step) { step_ = std::move(step); }
  ~Background() { stop(); }

  void start();
  void stop();
  // From any thread: a lease ends at `deadline`, maybe sooner than those known so far.
  void note_deadline(Nanos deadline);

 private:
  void run();
  void wait_for(Nanos deadline);

  Store& store_;
  LeaseTable& leases_;
  const Clock& clock_;
  Mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  Nanos known_deadline_ GUARDED_BY(mutex_) = 0;  // run() looks at the leases again by then
  std::function<bool()> step_;
  std::thread thread_;
};

}  // namespace infinistore
