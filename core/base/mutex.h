#pragma once
// Mutex: std::mutex that clang's thread-safety analysis understands.

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define KV_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define KV_THREAD_ANNOTATION(x)
#endif
#define CAPABILITY(x) KV_THREAD_ANNOTATION(capability(x))
#define SCOPED_CAPABILITY KV_THREAD_ANNOTATION(scoped_lockable)
#define GUARDED_BY(x) KV_THREAD_ANNOTATION(guarded_by(x))
#define REQUIRES(...) KV_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define ACQUIRE(...) KV_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) KV_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define RELEASE(...) KV_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define EXCLUDES(...) KV_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define RETURN_CAPABILITY(x) KV_THREAD_ANNOTATION(lock_returned(x))
#define NO_THREAD_SAFETY_ANALYSIS KV_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace infinistore {

class CAPABILITY("mutex") Mutex {
 public:
  // Others hold it for a microsecond, mostly: to sleep and be woken takes five.
  void lock() ACQUIRE() {
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      if (mutex_.try_lock()) return;
      pause();
    }
    mutex_.lock();
  }
  void unlock() RELEASE() { mutex_.unlock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  std::mutex& native() { return mutex_; }

 private:
  static constexpr int kAttempts = 40;
  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  std::mutex mutex_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace infinistore
