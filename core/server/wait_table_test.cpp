#include "core/server/wait_table.h"

#include <doctest/doctest.h>

namespace infinistore {

TEST_CASE("those who wait for a key are told once, and nobody else") {
  WaitTable table;
  const Waiter one{.worker_index = 1, .item_index = 0, .session_id = 1, .request_id = 1};
  const Waiter two{.worker_index = 1, .item_index = 1, .session_id = 1, .request_id = 1};
  table.add(7, "k", one);
  table.add(7, "k", two);
  table.add(8, "k", one);
  table.add(7, "m", one);
  CHECK(table.count() == 4);
  CHECK(table.take(7, "other").empty());
  CHECK(table.take(7, "k") == std::vector<Waiter>{one, two});
  CHECK(table.take(7, "k").empty());
  CHECK(table.count() == 2);
}

TEST_CASE("a waiter can leave, also after it was told") {
  WaitTable table;
  const Waiter one{.worker_index = 0, .item_index = 0, .session_id = 1, .request_id = 1};
  const Waiter two{.worker_index = 0, .item_index = 0, .session_id = 2, .request_id = 1};
  table.add(0, "k", one);
  table.add(0, "k", two);
  table.remove(0, "k", one);
  table.remove(0, "k", one);
  CHECK(table.count() == 1);
  CHECK(table.take(0, "k") == std::vector<Waiter>{two});
  table.remove(0, "k", two);
  CHECK(table.count() == 0);
}

}  // namespace infinistore
