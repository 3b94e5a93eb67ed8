#include "core/memory/buddy.h"

#include <doctest/doctest.h>

#include <random>
#include <set>

namespace infinistore {
namespace {

using Runs = std::vector<PageRun>;

std::uint64_t page_count(const Runs& runs) {
  std::uint64_t count = 0;
  for (const PageRun run : runs) count += run.count;
  return count;
}

TEST_CASE("nothing is free until it is given") {
  Buddy buddy(4 * Buddy::kSlabPages);
  Runs runs;
  CHECK_FALSE(buddy.take(1, runs));
  buddy.give({.first = 0, .count = 3});
  CHECK(buddy.free_count() == 3);
  CHECK_FALSE(buddy.take(4, runs));
  CHECK(runs.empty());
  CHECK(buddy.take(3, runs));
  CHECK(page_count(runs) == 3);
  CHECK(buddy.free_count() == 0);
}

TEST_CASE("a value of any size is one run when its pages adjoin") {
  Buddy buddy(8 * Buddy::kSlabPages);
  buddy.give({.first = 0, .count = 8 * Buddy::kSlabPages});
  for (const std::uint64_t count : {1ULL, 3ULL, 511ULL, 512ULL, 513ULL, 2'000ULL}) {
    CAPTURE(count);
    Runs runs;
    CHECK(buddy.take(count, runs));
    CHECK(runs.size() == 1);
    CHECK(runs.front().count == count);
    CHECK(buddy.check_integrity().empty());
    buddy.give(runs.front());
    CHECK(buddy.free_count() == 8 * Buddy::kSlabPages);
    CHECK(buddy.check_integrity().empty());
  }
}

TEST_CASE("a long value gets adjoining slabs again after the pool was full") {
  Buddy buddy(8 * Buddy::kSlabPages);
  buddy.give({.first = 0, .count = 8 * Buddy::kSlabPages});
  Runs all;
  CHECK(buddy.take(8 * Buddy::kSlabPages, all));
  for (const PageRun run : all) buddy.give(run);
  Runs again;
  CHECK(buddy.take(5 * Buddy::kSlabPages, again));
  CHECK(again.size() == 1);
}

TEST_CASE("the last free page can be used however scattered they are") {
  Buddy buddy(2 * Buddy::kSlabPages);
  for (std::uint64_t page = 0; page < 2 * Buddy::kSlabPages; page += 2) {
    buddy.give({.first = page, .count = 1});
  }
  Runs runs;
  CHECK(buddy.take(Buddy::kSlabPages, runs));
  CHECK(runs.size() == Buddy::kSlabPages);
  CHECK(buddy.free_count() == 0);
  std::set<std::uint64_t> pages;
  for (const PageRun run : runs) pages.insert(run.first);
  CHECK(pages.size() == Buddy::kSlabPages);
}

TEST_CASE("free buddies join across sizes, and not across slabs") {
  Buddy buddy(2 * Buddy::kSlabPages);
  for (std::uint64_t page = 0; page < 2 * Buddy::kSlabPages; ++page) {
    buddy.give({.first = page, .count = 1});
  }
  CHECK(buddy.check_integrity().empty());
  Runs runs;
  CHECK(buddy.take(Buddy::kSlabPages, runs));
  CHECK(runs.front().count == Buddy::kSlabPages);
  CHECK(runs.front().first % Buddy::kSlabPages == 0);
}

TEST_CASE("page numbers beyond 32 bits of bytes do not wrap") {
  const std::uint64_t pages = (std::uint64_t{64} << 30) / 4096;  // 64 GiB
  Buddy buddy(pages);
  buddy.give({.first = 0, .count = pages});
  CHECK(buddy.free_count() == pages);
  Runs runs;
  CHECK(buddy.take(pages, runs));
  CHECK(runs.size() == 1);
  CHECK(runs.front() == PageRun{.first = 0, .count = pages});
  buddy.give({.first = pages - 1, .count = 1});
  CHECK(buddy.is_free(pages - 1));
  CHECK_FALSE(buddy.is_free(pages - 2));
}

TEST_CASE("random takes and gives never overlap and always add up") {
  constexpr std::uint64_t kPages = 6 * Buddy::kSlabPages + 77;
  Buddy buddy(kPages);
  buddy.give({.first = 0, .count = kPages});
  std::mt19937_64 random(20240);  // NOLINT: a fixed seed is the point
  std::vector<Runs> held;
  std::vector<bool> is_taken(kPages);
  std::uint64_t taken = 0;
  for (int step = 0; step < 3'000; ++step) {
    if (!held.empty() && random() % 2 == 0) {
      std::swap(held[random() % held.size()], held.back());
      for (const PageRun run : held.back()) {
        buddy.give(run);
        for (std::uint64_t page = run.first; page < run.first + run.count; ++page) {
          is_taken[page] = false;
        }
        taken -= run.count;
      }
      held.pop_back();
    } else {
      Runs runs;
      const std::uint64_t count = 1 + random() % (random() % 4 == 0 ? 1'200 : 40);
      const bool fits = count <= kPages - taken;
      REQUIRE(buddy.take(count, runs) == fits);
      if (!fits) continue;
      REQUIRE(page_count(runs) == count);
      for (const PageRun run : runs) {
        REQUIRE(run.first + run.count <= kPages);
        for (std::uint64_t page = run.first; page < run.first + run.count; ++page) {
          REQUIRE_FALSE(is_taken[page]);
          is_taken[page] = true;
        }
      }
      taken += count;
      held.push_back(std::move(runs));
    }
    REQUIRE(buddy.free_count() == kPages - taken);
    if (step % 50 == 0) REQUIRE(buddy.check_integrity() == "");
  }
}

}  // namespace
}  // namespace infinistore
