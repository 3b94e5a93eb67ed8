#include "tests/fake_cuda/stream.h"

#include <algorithm>
#include <utility>

namespace fake_cuda {

Timeline& Timeline::all() {
  static Timeline& timeline = *std::make_unique<Timeline>().release();
  return timeline;
}

Stream* Timeline::make_stream(Context& context, unsigned flags) {
  const std::lock_guard lock(mutex_);
  Stream* const stream = make_stream_locked(context, (flags & kStreamNonBlocking) == 0);
  live_streams_.insert(stream);
  return stream;
}

Stream* Timeline::make_stream_locked(Context& context, bool waits_for_legacy) {
  streams_.push_back(
      std::unique_ptr<Stream>(std::make_unique<Stream>(Stream{.context = context,
                                                              .waits_for_legacy = waits_for_legacy,
                                                              .is_destroyed = false,
                                                              .submitted = 0,
                                                              .completed = 0,
                                                              .queue = {}})));
  Stream* const stream = streams_.back().get();
  std::thread([this, stream] { run(*stream); }).detach();
  return stream;
}

Stream* Timeline::default_stream_locked(std::map<Context*, Stream*>& streams) {
  Context* const context = current_context();
  if (context == nullptr) return nullptr;
  auto& stream = streams[context];
  if (stream == nullptr) stream = make_stream_locked(*context, &streams != &legacy_);
  return stream;
}

Stream* Timeline::find_stream(CUstream handle) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  const std::lock_guard lock(mutex_);
  if (number == 0 || number == kLegacyStream) return default_stream_locked(legacy_);
  if (number == kPerThreadStream) {
    return default_stream_locked(per_thread_[std::this_thread::get_id()]);
  }
  auto* const stream = reinterpret_cast<Stream*>(handle);
  return live_streams_.contains(stream) ? stream : nullptr;
}

CUresult Timeline::destroy_stream(CUstream handle) {
  const std::lock_guard lock(mutex_);
  auto* const stream = reinterpret_cast<Stream*>(handle);
  if (live_streams_.erase(stream) == 0) return CUDA_ERROR_INVALID_HANDLE;
  stream->is_destroyed = true;  // once what is queued is done
  changed_.notify_all();
  return CUDA_SUCCESS;
}

void Timeline::submit(Stream& stream, Work work) {
  const std::lock_guard lock(mutex_);
  submit_locked(stream, std::move(work));
}

std::uint64_t Timeline::submit_locked(Stream& stream, Work work) {
  const auto legacy = legacy_.find(&stream.context);
  if (legacy != legacy_.end() && legacy->second == &stream) {
    for (const auto& other : streams_) {
      if (other->waits_for_legacy && &other->context == &stream.context) {
        work.after.push_back({other.get(), other->submitted});
      }
    }
  } else if (legacy != legacy_.end() && stream.waits_for_legacy) {
    work.after.push_back({legacy->second, legacy->second->submitted});
  }
  std::erase_if(work.after, [&](const Mark& mark) { return has_reached_locked(mark); });
  // An idle stream has come to a mark as soon as it is set.
  if (work.run || !work.after.empty() || stream.completed < stream.submitted) {
    stream.queue.push_back(std::move(work));
    ++stream.submitted;
    changed_.notify_all();
  }
  return stream.submitted;
}

void Timeline::run(Stream& stream) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !stream.queue.empty() || stream.is_destroyed; });
    if (stream.queue.empty()) return;
    const Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    for (const auto& mark : work.after) {
      changed_.wait(
          lock, [&] { return has_reached_locked(mark) || stream.context.error != CUDA_SUCCESS; });
    }
    // Nothing of a context that has failed runs any more, host functions neither.
    if (work.run && stream.context.error == CUDA_SUCCESS) {
      lock.unlock();
      work.run(stream);
      lock.lock();
    }
    ++stream.completed;
    changed_.notify_all();
  }
}

bool Timeline::has_reached_locked(const Mark& mark) const {
  return mark.stream->completed >= mark.position;
}

CUresult Timeline::synchronize(Stream& stream) {
  std::unique_lock lock(mutex_);
  const Mark end{&stream, submit_locked(stream, {})};
  changed_.wait(lock,
                [&] { return has_reached_locked(end) || stream.context.error != CUDA_SUCCESS; });
  return stream.context.error;
}

Event* Timeline::make_event(Context& context) {
  const std::lock_guard lock(mutex_);
  auto event = std::make_unique<Event>(Event{.context = context, .mark = std::nullopt});
  Event* const made = event.get();
  events_.emplace(made, std::move(event));
  return made;
}

CUresult Timeline::destroy_event(CUevent handle) {
  const std::lock_guard lock(mutex_);
  return events_.erase(reinterpret_cast<Event*>(handle)) == 0 ? CUDA_ERROR_INVALID_HANDLE
                                                              : CUDA_SUCCESS;
}

Event* Timeline::find_event(CUevent handle) {
  const std::lock_guard lock(mutex_);
  const auto found = events_.find(reinterpret_cast<Event*>(handle));
  return found == events_.end() ? nullptr : found->second.get();
}

void Timeline::record(Event& event, Stream& stream) {
  const std::lock_guard lock(mutex_);
  event.mark = Mark{&stream, submit_locked(stream, {})};
}

CUresult Timeline::query(const Event& event) {
  const std::lock_guard lock(mutex_);
  const CUresult error = event.context.error;
  if (error != CUDA_SUCCESS) return error;
  return !event.mark || has_reached_locked(*event.mark) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult Timeline::synchronize(const Event& event) {
  std::unique_lock lock(mutex_);
  const auto mark = event.mark;
  changed_.wait(lock, [&] {
    return !mark || has_reached_locked(*mark) || event.context.error != CUDA_SUCCESS;
  });
  return event.context.error;
}

void Timeline::wait_for(Stream& stream, const Event& event) {
  const std::lock_guard lock(mutex_);
  if (event.mark) submit_locked(stream, {.run = {}, .after = {*event.mark}});
}

void Timeline::hold_until(const Stream& stream, const std::function<bool()>& condition) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return condition() || stream.context.error != CUDA_SUCCESS; });
}

void Timeline::change(const std::function<void()>& action) {
  const std::lock_guard lock(mutex_);
  action();
  changed_.notify_all();
}

void Timeline::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::ranges::all_of(
        streams_, [](const auto& stream) { return stream->completed == stream->submitted; });
  });
}

std::uint64_t Timeline::live_streams() {
  const std::lock_guard lock(mutex_);
  return live_streams_.size();
}

std::uint64_t Timeline::live_events() {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

}  // namespace fake_cuda
