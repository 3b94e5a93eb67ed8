#pragma once
// Unlocked: gives up the GIL for a scope, also if Python ends meanwhile.

#include <Python.h>
#include <unistd.h>

namespace infinistore {

class Unlocked {
 public:
  Unlocked() noexcept : state_(PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  // Once Python ends, a daemon thread that asks for the GIL is unwound from within this call (up to
  // Python 3.13).  Unwinding out of a destructor aborts the process, so the thread sleeps instead
  // until the process is gone, as it does from Python 3.14 on.
  ~Unlocked() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) ::pause();
    }
  }

 private:
  PyThreadState* state_;
};

}  // namespace infinistore
