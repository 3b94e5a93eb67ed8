#include "core/base/poller.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "core/base/check.h"

namespace infinistore {
namespace {

constexpr int kEventsAtOnce = 64;

int timeout_ms(Nanos timeout) noexcept {
  if (timeout < 0) return -1;
  const Nanos rounded_up = (timeout + kMillisecond - 1) / kMillisecond;
  return static_cast<int>(std::min<Nanos>(rounded_up, 1'000'000));
}

}  // namespace

Poller::Poller()
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      wakeup_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      events_(kEventsAtOnce) {
  if (!epoll_ || !wakeup_) throw std::system_error(errno, std::generic_category(), "epoll");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = nullptr;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wakeup_.get(), &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

bool Poller::add(int fd, std::uint32_t events, PollTarget& target) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &target;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void Poller::change(int fd, std::uint32_t events, PollTarget& target) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &target;
  KV_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0);
}

void Poller::remove(int fd, PollTarget& target) noexcept {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  std::replace(ready_.begin(), ready_.end(), &target, static_cast<PollTarget*>(nullptr));
  std::erase(again_, &target);
}

void Poller::again(PollTarget& target) {
  if (std::find(again_.begin(), again_.end(), &target) == again_.end()) again_.push_back(&target);
  wake();
}

void Poller::wait(Nanos timeout) {
  if (timeout > 0 && timeout < kMillisecond) {  // epoll_wait() knows whole milliseconds only
    pollfd all{.fd = epoll_.get(), .events = POLLIN, .revents = 0};
    const timespec time{.tv_sec = 0, .tv_nsec = timeout};
    ::ppoll(&all, 1, &time, nullptr);
    timeout = 0;
  }
  const int count = ::epoll_wait(epoll_.get(), events_.data(), kEventsAtOnce, timeout_ms(timeout));
  // Nothing, or EINTR: the caller looks at its clock and comes again.
  event_count_ = static_cast<std::size_t>(std::max(count, 0));
}

void Poller::wait_awake(Nanos timeout) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout);
  for (;;) {
    wait(0);
    if (event_count_ > 0 || std::chrono::steady_clock::now() >= until) return;
    std::this_thread::yield();
  }
}

void Poller::dispatch() {
  ready_.clear();
  for (std::size_t i = 0; i < event_count_; ++i) {
    ready_.push_back(static_cast<PollTarget*>(events_[i].data.ptr));
    if (ready_.back() != nullptr) continue;
    // Before anybody is called, who may wake us for the next time.
    std::uint64_t drained = 0;
    [[maybe_unused]] const auto got = ::read(wakeup_.get(), &drained, sizeof drained);
  }
  ready_.insert(ready_.end(), again_.begin(), again_.end());
  again_.clear();
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    if (ready_[i] != nullptr) ready_[i]->on_ready(i < event_count_ ? events_[i].events : EPOLLIN);
  }
  ready_.clear();
  event_count_ = 0;
}

void Poller::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto put = ::write(wakeup_.get(), &one, sizeof one);
}

}  // namespace infinistore
