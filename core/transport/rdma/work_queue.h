#pragma once
// WorkQueue: the bytes that one queue pair has still to move, and those that it is moving.
//
// So many orders at most are on their way, in the order in which they came; the rest waits.  Only
// some tell of their end: an order that has ended shows that all before it have.  No device here:
// its owner posts what take() gives, and tells complete() what the device says.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace infinistore {

enum class Direction : std::uint8_t { kRead, kWrite };  // from, or to the client's memory

// Bytes that are contiguous on both sides.
struct WorkPiece {
  std::uint64_t local = 0;
  std::uint64_t remote = 0;
  std::uint64_t bytes = 0;
  std::uint32_t local_key = 0;
  std::uint32_t remote_key = 0;
};

struct Work {
  std::uint64_t request_id = 0;
  Direction direction = Direction::kRead;
  std::vector<WorkPiece> pieces;

  // Joins what adjoins.
  void add(const WorkPiece& piece);
};

class WorkQueue {
 public:
  struct Order {
    WorkPiece piece;
    std::uint64_t number = 0;
    Direction direction = Direction::kRead;
    bool tells = false;  // of its end
  };
  struct Ended {
    std::uint64_t request_id = 0;
    Direction direction = Direction::kRead;
  };

  // `orders_max`: on their way at once; `order_bytes_max`: longer pieces are cut.
  WorkQueue(std::size_t orders_max, std::uint64_t order_bytes_max);

  void add(Work work);  // of at least one piece
  // What may be posted now, and counts as on its way from now on; returns how many.
  std::size_t take(std::span<Order> orders);
  // An order has ended well, and with it all before; what is whole now is appended to `ended`.
  void complete(std::uint64_t number, std::vector<Ended>& ended);
  // Whose order it is; nullopt: it is not on its way.
  std::optional<std::uint64_t> request_of(std::uint64_t number) const noexcept;

  bool is_empty() const noexcept { return waiting_.empty() && posted_.empty(); }
  std::size_t posted_count() const noexcept { return posted_.size(); }
  std::uint64_t moved_bytes() const noexcept { return moved_bytes_; }

 private:
  struct Waiting {
    Work work;
    std::size_t piece = 0;
    std::uint64_t offset = 0;  // in it
  };
  struct Posted {
    std::uint64_t request_id;
    std::uint64_t bytes;
    Direction direction;
    bool is_last;  // of its request
  };

  Order next_order();

  const std::size_t orders_max_;
  const std::uint64_t order_bytes_max_;
  std::deque<Waiting> waiting_;
  std::deque<Posted> posted_;
  std::uint64_t first_number_ = 0;  // of posted_
  std::size_t untold_ = 0;          // since the last that tells
  std::uint64_t untold_bytes_ = 0;
  std::uint64_t moved_bytes_ = 0;
};

}  // namespace infinistore
