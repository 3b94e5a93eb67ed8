#pragma once
// start_thread: a thread of ours inside a Python process: it takes no signals, and has a name.

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace infinistore {

// `name` has at most 15 bytes.  Throws std::system_error if the system has no thread left.
template <class Body>
std::thread start_thread(const char* name, Body body) {
  // Inherited: no signal lands here, not even at first.  Given back also if there is no thread.
  struct AllBlocked {
    AllBlocked() noexcept {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~AllBlocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  };
  std::thread thread;
  {
    const AllBlocked blocked;
    thread = std::thread(std::move(body));
  }
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace infinistore
