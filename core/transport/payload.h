#pragma once
// Payload: where the bulk bytes of one frame come from or go to, piece by piece.
//
// A stream peeks at the next pieces for one writev or readv, and advances by what the kernel took.

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/bytes.h"

namespace infinistore {

// Of bulk bytes named for one system call.  In smaller calls the same bytes cost more, as each of
// them wakes the receiver (measured at 4 KiB: 64 pieces at once cost 5 % more than 256).
inline constexpr std::size_t kCallBytes = 1u << 20;

enum class Moved {
  kAll,    // the bytes are where they shall be: nobody touches their memory any more
  kLater,  // that is told by a call
};

class Payload {
 public:
  virtual ~Payload() = default;

  // Names the next pieces, in order, without moving on; returns how many (0: the end).
  virtual std::size_t peek(std::span<iovec> pieces) noexcept = 0;
  // So many bytes from the front of what peek() named have been moved.
  virtual void advance(std::size_t bytes) noexcept = 0;
};

// The plain one: a list of memory, owned by someone who outlives it.
class Scatter final : public Payload {
 public:
  void add(const std::byte* data, std::size_t bytes) {
    if (bytes > 0) pieces_.push_back({const_cast<std::byte*>(data), bytes});
  }
  std::size_t peek(std::span<iovec> pieces) noexcept override {
    std::size_t count = 0;
    std::size_t bytes = 0;
    for (std::size_t i = next_; i < pieces_.size() && count < pieces.size(); ++i) {
      if (count >= kLargePieces && bytes >= kCallBytes) break;
      bytes += pieces_[i].iov_len;
      pieces[count++] = pieces_[i];
    }
    return count;
  }
  void advance(std::size_t bytes) noexcept override {
    while (bytes > 0) {
      auto& piece = pieces_[next_];
      const std::size_t step = bytes < piece.iov_len ? bytes : piece.iov_len;
      piece.iov_base = static_cast<std::byte*>(piece.iov_base) + step;
      piece.iov_len -= step;
      bytes -= step;
      if (piece.iov_len == 0) ++next_;
    }
  }

 private:
  // So many whatever their lengths: of 64 KiB, either fewer or more cost 4 to 10 % (measured).
  static constexpr std::size_t kLargePieces = 63;

  std::vector<iovec> pieces_;
  std::size_t next_ = 0;
};

// Takes bytes and forgets them: keeps a stream in step after a refusal.
class Discard final : public Payload {
 public:
  std::size_t peek(std::span<iovec> pieces) noexcept override {
    pieces[0] = {waste_, sizeof waste_};
    return 1;
  }
  void advance(std::size_t) noexcept override {}

 private:
  std::byte waste_[64 * 1024];
};

}  // namespace infinistore
