#include "core/memory/small_heap.h"

#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

namespace infinistore {
namespace {

// Memory that says whose it is, to its last byte.
struct Held {
  std::byte* memory;
  std::size_t bytes;
  unsigned char mark;

  bool is_whole() const {
    for (std::size_t i = 0; i < bytes; ++i) {
      if (memory[i] != std::byte{mark}) return false;
    }
    return true;
  }
};

Held take(std::size_t bytes, unsigned char mark) {
  auto* const memory = static_cast<std::byte*>(small_alloc(bytes));
  std::memset(memory, mark, bytes);
  return {memory, bytes, mark};
}

void churn(unsigned seed, int& wrong) {
  std::mt19937 random(seed);
  std::vector<Held> held;
  for (int step = 0; step < 20'000; ++step) {
    if (held.empty() || random() % 5 < 3) {
      held.push_back(take(1 + random() % kSmallBytesMax, static_cast<unsigned char>(random())));
      if (reinterpret_cast<std::uintptr_t>(held.back().memory) % 16 != 0) ++wrong;
    } else {
      std::swap(held[random() % held.size()], held.back());
      if (!held.back().is_whole()) ++wrong;
      small_free(held.back().memory, held.back().bytes);
      held.pop_back();
    }
  }
  for (const Held& each : held) {
    if (!each.is_whole()) ++wrong;
    small_free(each.memory, each.bytes);
  }
}

TEST_CASE("nobody gets memory that another holds, on any thread") {
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < wrong.size(); ++i) {
    threads.emplace_back([&wrong, i] { churn(i, wrong[i]); });
  }
  for (auto& thread : threads) thread.join();
  for (const int count : wrong) CHECK(count == 0);
}

TEST_CASE("what one thread frees another can have") {
  std::vector<Held> held;
  std::thread maker([&] {
    for (int i = 0; i < 3'000; ++i) held.push_back(take(160, static_cast<unsigned char>(i)));
  });
  maker.join();
  for (const Held& each : held) {
    CHECK(each.is_whole());
    small_free(each.memory, each.bytes);
  }
  const Held again = take(160, 1);
  CHECK(again.is_whole());
  small_free(again.memory, again.bytes);
}

TEST_CASE("tables of all sizes are apart, aligned, and reused") {
  std::vector<Held> held;
  for (std::size_t bytes = 64; bytes <= (std::size_t{8} << 20); bytes *= 4) {
    for (unsigned char mark = 0; mark < 3; ++mark) {
      auto* const memory = static_cast<std::byte*>(table_alloc(bytes));
      CHECK(reinterpret_cast<std::uintptr_t>(memory) % 64 == 0);
      std::memset(memory, mark, bytes);
      held.push_back({memory, bytes, mark});
    }
  }
  for (const Held& each : held) {
    CHECK(each.is_whole());
    table_free(each.memory, each.bytes);
  }
}

}  // namespace
}  // namespace infinistore
