#pragma once
// TileCopy: one copy of many tiles by a GPU, on its way.

#include <memory>
#include <optional>
#include <vector>

#include "core/base/poller.h"
#include "core/base/result.h"
#include "core/device/gpu.h"
#include "core/device/stream_call.h"
#include "core/device/tile.h"

namespace infinistore {

// How much of a GPU takes part in a copy.
struct LaunchShape {
  unsigned thread_blocks;
  unsigned threads;  // of each
};

class TileCopy {
  struct Private {};

 public:
  // All host memory that is named is registered.
  static Result<std::unique_ptr<TileCopy>> prepare(Gpu& gpu, TileList tiles);
  // Launches it, once; `waker` is woken at its end.
  Error launch(Way way, bool sums, Waker& waker, LaunchShape shape = kShape);
  // The same, to the host, summed, by a copy engine.
  Error launch_engine(Waker& waker);
  TileCopy(Private, Gpu& gpu, TileList tiles) noexcept : gpu_(gpu), tiles_(std::move(tiles)) {}
  ~TileCopy();  // waits
  TileCopy(const TileCopy&) = delete;
  TileCopy& operator=(const TileCopy&) = delete;

  // Whether nothing touches the memory any more.
  bool is_over();
  void wait() noexcept;
  // After the end: kOk, or why the bytes are not there.
  const Error& outcome() const noexcept { return outcome_; }
  // Of each item, after a good end, if it was started with sums.
  std::vector<std::uint64_t> sums() const;

 private:
  // They move nearly all that the bus takes (measured), and leave the model its multiprocessors.
  static constexpr LaunchShape kShape = {.thread_blocks = 8, .threads = 512};

  Error run(CuFunction kernel, LaunchShape shape, CuStream stream);
  Error copy_pieces(CuStream stream);
  Error mark_end(Way way, CuStream stream, Waker& waker);
  void end(CuStatus status);
  std::uint64_t* results() const noexcept;

  Gpu& gpu_;
  const TileList tiles_;
  PinnedMemory memory_;  // the tiles, then a result of each
  CuEvent event_ = nullptr;
  bool is_over_ = true;
  Error outcome_{Code::kOk, {}};
  std::optional<StreamCall> call_;
};

}  // namespace infinistore
