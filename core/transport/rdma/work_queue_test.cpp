#include "core/transport/rdma/work_queue.h"

#include <doctest/doctest.h>

#include <array>
#include <random>

#include "core/transport/rdma/verbs/work_status.h"

namespace infinistore {
namespace {

using Order = WorkQueue::Order;

Work work(std::uint64_t id, std::size_t pieces, std::uint64_t bytes = 64) {
  Work made{.request_id = id, .direction = Direction::kWrite, .pieces = {}};
  for (std::size_t i = 0; i < pieces; ++i) {
    made.add(
        {.local = i * 4096, .remote = i * 8192, .bytes = bytes, .local_key = 1, .remote_key = 2});
  }
  return made;
}

TEST_CASE("pieces that adjoin on both sides become one") {
  Work joined;
  joined.add({.local = 0, .remote = 100, .bytes = 10, .local_key = 1, .remote_key = 2});
  joined.add({.local = 10, .remote = 110, .bytes = 5, .local_key = 1, .remote_key = 2});
  joined.add({.local = 15, .remote = 115, .bytes = 5, .local_key = 1, .remote_key = 3});
  joined.add({.local = 20, .remote = 130, .bytes = 5, .local_key = 1, .remote_key = 3});
  CHECK(joined.pieces.size() == 3);
  CHECK(joined.pieces[0].bytes == 15);
}

TEST_CASE("no more orders are on their way than there is room for, whatever waits") {
  WorkQueue queue(8, 1u << 20);
  for (std::uint64_t id = 1; id <= 1000; ++id) queue.add(work(id, 3));
  std::array<Order, 64> orders;
  std::vector<WorkQueue::Ended> ended;
  std::uint64_t next = 0;
  while (!queue.is_empty()) {
    const auto count = queue.take(orders);
    CHECK(queue.posted_count() <= 8);
    REQUIRE(count > 0);
    // Something of what was posted always tells: else nothing would go on.
    std::uint64_t told = 0;
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(orders[i].number == next++);
      if (orders[i].tells) told = orders[i].number + 1;
    }
    REQUIRE(told > 0);
    queue.complete(told - 1, ended);
  }
  REQUIRE(ended.size() == 1000);
  for (std::uint64_t id = 1; id <= 1000; ++id) CHECK(ended[id - 1].request_id == id);
  CHECK(queue.moved_bytes() == 1000 * 3 * 64);
}

TEST_CASE("the last order of a request tells of its end, and few others do") {
  WorkQueue queue(512, 1u << 20);
  queue.add(work(1, 100));
  std::array<Order, 512> orders;
  const auto count = queue.take(orders);
  REQUIRE(count == 100);
  std::size_t told = 0;
  for (std::size_t i = 0; i < count; ++i) told += orders[i].tells ? 1 : 0;
  CHECK(told == 4);
  CHECK(orders[99].tells);
}

TEST_CASE("a long piece is cut into orders that the device takes") {
  WorkQueue queue(4, 1000);
  queue.add(work(1, 1, 2500));
  std::array<Order, 8> orders;
  REQUIRE(queue.take(orders) == 3);
  CHECK(orders[2].piece.bytes == 500);
  CHECK(orders[2].piece.local == 2000);
  CHECK(orders[2].piece.remote == 2000);
  std::vector<WorkQueue::Ended> ended;
  queue.complete(1, ended);
  CHECK(ended.empty());
  CHECK(queue.request_of(1) == std::nullopt);
  CHECK(queue.request_of(2) == 1);
  queue.complete(2, ended);
  CHECK(ended.size() == 1);
}

TEST_CASE("every status has a sentence, and those that a user meets a remedy") {
  for (int status = 1; status < 24; ++status) {
    const auto error = describe_work_status(status, 7);
    CHECK(error.code != Code::kOk);
    CHECK(error.message.size() > 40);
  }
  CHECK(describe_work_status(10, 0).code == Code::kInvalid);
  CHECK(describe_work_status(12, 0).message.find("link is down") != std::string::npos);
  CHECK(describe_work_status(99, 0).code == Code::kDisconnected);
}

}  // namespace
}  // namespace infinistore
