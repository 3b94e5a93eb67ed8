#include "core/client/operation.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/check.h"

namespace infinistore {
namespace {

constexpr Nanos kForEver = 1'000'000 * kSecond;
constexpr std::chrono::microseconds kAwakeMax{500};

}  // namespace

Completions::Completions() : eventfd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (eventfd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

Completions::~Completions() { ::close(eventfd_); }

void Completions::add(std::uint64_t operation_id) {
  const MutexLock lock(mutex_);
  ended_.push_back(operation_id);
  if (ended_.size() > 1) return;  // the reader has not come for the last one: it is awake already
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto put = ::write(eventfd_, &one, sizeof one);
}

std::vector<std::uint64_t> Completions::take() {
  const MutexLock lock(mutex_);
  std::uint64_t drained = 0;
  [[maybe_unused]] const auto got = ::read(eventfd_, &drained, sizeof drained);
  return std::exchange(ended_, {});
}

void Operation::begin(std::uint64_t id, std::size_t parts, Completions* completions, Crew* crew,
                      bool ends_awake) {
  id_ = id;
  completions_ = completions;
  crew_ = crew;
  {
    const MutexLock lock(mutex_);
    parts_left_ = parts;
  }
  ends_awake_ = ends_awake;
  is_near_end_ = parts <= kPartsNearEnd;
  if (parts == 0) {
    is_done_.store(true, std::memory_order_release);
    if (completions_ != nullptr) completions_->add(id_);
  }
}

void Operation::end_part(const Error* failure) {
  const MutexLock lock(mutex_);
  KV_CHECK(parts_left_ > 0);
  if (failure != nullptr && failure_.code == Code::kOk) failure_ = *failure;
  if (--parts_left_ > 0) {
    if (parts_left_ > kPartsNearEnd || !ends_awake_) return;
    is_near_end_ = true;
    changed_.notify_all();
    return;
  }
  is_done_ = true;  // sequentially consistent, for the crew
  if (completions_ != nullptr) completions_->add(id_);
  changed_.notify_all();
  if (crew_ != nullptr) crew_->nudge();
}

Operation::~Operation() {
  const MutexLock lock(mutex_);  // the owner may see the end while end_part() is still in here
  KV_CHECK(parts_left_ == 0);
}

bool Operation::wait(Nanos timeout) {
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout < 0 ? kForEver : timeout);
  if (crew_ != nullptr && crew_->help(is_done_, timeout < 0 ? kForEver : timeout)) return true;
  const auto wait_for = [&](const std::atomic<bool>& is_so) {
    std::unique_lock lock(mutex_.native());
    return changed_.wait_until(lock, until, [&] { return is_so.load(); });
  };
  if (ends_awake_) {
    if (!wait_for(is_near_end_)) return false;
    if (!was_awake_.exchange(true) && wait_awake(until)) return true;
  }
  return wait_for(is_done_);
}

// Gives the processor away between two looks, for as long as a few parts take.
bool Operation::wait_awake(std::chrono::steady_clock::time_point until) const noexcept {
  const auto enough = std::min(until, std::chrono::steady_clock::now() + kAwakeMax);
  while (!is_done()) {
    if (std::chrono::steady_clock::now() >= enough) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace infinistore
