#pragma once
// Streams: a thread and a queue each.  Events: marks in them.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "tests/fake_cuda/context.h"

namespace fake_cuda {

struct Stream;

// Behind the first `position` pieces of work of a stream.
struct Mark {
  Stream* stream = nullptr;
  std::uint64_t position = 0;
};

struct Work {
  std::function<void(Stream&)> run;  // empty: a wait only
  std::vector<Mark> after;
};

// Its fields are the Timeline's, under its mutex.
struct Stream {
  Context& context;
  const bool waits_for_legacy;  // and the legacy stream for it, as CUDA says of blocking streams
  bool is_destroyed = false;
  std::uint64_t submitted = 0;
  std::uint64_t completed = 0;
  std::deque<Work> queue;
};

struct Event {
  Context& context;
  std::optional<Mark> mark;  // nullopt: never recorded, which counts as reached
};

// All streams and events.
class Timeline {
 public:
  static Timeline& all();

  Stream* make_stream(Context& context, unsigned flags);
  CUresult destroy_stream(CUstream handle);
  // With the calling thread's context for the default streams; nullptr: there is none such.
  Stream* find_stream(CUstream handle);
  void submit(Stream& stream, Work work);
  // Waits until all that is queued now is done, or its context has failed.
  CUresult synchronize(Stream& stream);

  Event* make_event(Context& context);
  CUresult destroy_event(CUevent handle);
  Event* find_event(CUevent handle);
  void record(Event& event, Stream& stream);
  CUresult query(const Event& event);
  CUresult synchronize(const Event& event);
  // Makes the stream's later work wait for what the event marks now.
  void wait_for(Stream& stream, const Event& event);

  // Blocks a stream's thread until `condition`, which the mutex guards, holds or its context has
  // failed.  wake() makes it look again.
  void hold_until(const Stream& stream, const std::function<bool()>& condition);
  // Does something under the mutex, and makes all that wait look again.
  void change(const std::function<void()>& action);
  // Waits until no stream has work.
  void drain();

  std::uint64_t live_streams();
  std::uint64_t live_events();

 private:
  void run(Stream& stream);
  std::uint64_t submit_locked(Stream& stream, Work work);
  Stream* default_stream_locked(std::map<Context*, Stream*>& streams);
  Stream* make_stream_locked(Context& context, bool waits_for_legacy);
  bool has_reached_locked(const Mark& mark) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Stream>> streams_;  // also those destroyed
  std::set<Stream*> live_streams_;                // of callers: without the default ones
  std::map<Context*, Stream*> legacy_;
  std::map<std::thread::id, std::map<Context*, Stream*>> per_thread_;
  std::map<Event*, std::unique_ptr<Event>> events_;
};

}  // namespace fake_cuda
