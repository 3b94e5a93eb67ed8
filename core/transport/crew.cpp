#include "core/transport/crew.h"

#include <chrono>
#include <mutex>

namespace infinistore {

void Crew::Job::work() {
  for (;;) {
    const std::size_t number = next.fetch_add(1, std::memory_order_relaxed);
    if (number >= count) return;
    part(number);
  }
}

void Crew::run(std::size_t count, const std::function<void(std::size_t)>& part) {
  Job job{.part = part, .count = count};
  if (count < 2 || !has_helpers()) {
    job.work();
    return;
  }
  {
    const MutexLock lock(mutex_);
    job_ = &job;
    changed_.notify_all();
  }
  job.work();
  std::unique_lock lock(mutex_.native());
  job_ = nullptr;
  finished_.wait(lock, [&job] { return job.helpers == 0; });
}

bool Crew::help(const std::atomic<bool>& is_over, Nanos timeout) {
  std::unique_lock lock(mutex_.native());
  if (helpers_ >= kHelpersMax) return is_over;
  ++helpers_;
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout);
  while (!is_over) {
    if (job_ != nullptr && !job_->is_given_out()) {
      Job& job = *job_;
      ++job.helpers;
      lock.unlock();
      job.work();
      lock.lock();
      if (--job.helpers == 0) finished_.notify_one();
    } else if (changed_.wait_until(lock, until) == std::cv_status::timeout) {
      break;
    }
  }
  --helpers_;
  return is_over;
}

void Crew::nudge() {
  if (!has_helpers()) return;
  const MutexLock lock(mutex_);
  changed_.notify_all();
}

}  // namespace infinistore
