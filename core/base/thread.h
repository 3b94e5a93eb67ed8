#pragma once
// start_thread: a thread of ours inside a Python process: it takes no signals, and has a name.

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace infinistore {

// `name` has at most 15 bytes.
template <class Body>
std::thread start_thread(const char* name, Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all,
                  &before);  // inherited: no signal lands here, not even at first
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace infinistore
