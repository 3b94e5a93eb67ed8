#include "core/memory/pool.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <random>
#include <thread>

namespace infinistore {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

Pool populated_pool(std::uint64_t bytes, std::uint64_t region_bytes = 0) {
  auto pool = Pool::create({.bytes = bytes, .region_bytes = region_bytes, .populate_now = true});
  REQUIRE(pool.ok());
  return std::move(*pool);
}

std::uint64_t total(const Extents& extents) {
  std::uint64_t bytes = 0;
  for (const Extent& extent : extents) bytes += extent.bytes;
  return bytes;
}

TEST_CASE("extents hold exactly the bytes asked for, and cost whole pages") {
  Pool pool = populated_pool(8 * kMiB);
  const auto one = pool.allocate(1);
  REQUIRE(one);
  CHECK(total(*one) == 1);
  CHECK(pool.free_bytes() == 8 * kMiB - 4096);
  const auto more = pool.allocate(3 * kMiB + 5);
  REQUIRE(more);
  CHECK(total(*more) == 3 * kMiB + 5);
  CHECK(pool.free_bytes() == 8 * kMiB - 4096 - 3 * kMiB - 4096);
  const std::vector<const Extents*> owned = {&*one, &*more};
  CHECK(pool.check_integrity(owned) == "");
  pool.free(*more);
  pool.free(*one);
  CHECK(pool.free_bytes() == 8 * kMiB);
  CHECK(pool.check_integrity({}) == "");
}

TEST_CASE("check_integrity sees a leak, a double owner, and a use after free") {
  Pool pool = populated_pool(2 * kMiB);
  const auto held = pool.allocate(10'000);
  REQUIRE(held);
  std::vector<const Extents*> owned;
  CHECK(pool.check_integrity(owned) != "");
  owned = {&*held, &*held};
  CHECK(pool.check_integrity(owned) != "");
  owned = {&*held};
  CHECK(pool.check_integrity(owned) == "");
  pool.free(*held);
  CHECK(pool.check_integrity(owned) != "");
}

TEST_CASE("a pool gives every byte out, and nothing past it") {
  Pool pool = populated_pool(3 * kMiB + 4096);
  CHECK_FALSE(pool.allocate(0));
  CHECK_FALSE(pool.allocate(3 * kMiB + 4097));
  CHECK_FALSE(pool.allocate(UINT64_MAX));
  CHECK(pool.allocate(3 * kMiB + 4096));
  CHECK(pool.free_bytes() == 0);
  CHECK_FALSE(pool.allocate(1));
}

TEST_CASE("a value may cross regions, and its extents do not") {
  Pool pool = populated_pool(6 * kMiB, 2 * kMiB);
  CHECK(pool.region_count() == 3);
  const auto extents = pool.allocate(6 * kMiB);
  REQUIRE(extents);
  CHECK(extents->size() == 3);
  for (const Extent& extent : *extents) {
    const MutableBytes bytes = pool.bytes_of(extent);
    CHECK(bytes.data() == pool.region_base(extent.region) + extent.offset);
    std::memset(bytes.data(), 0x5A, bytes.size());
  }
}

TEST_CASE("only what is populated is given out, while all of it is capacity") {
  auto made = Pool::create({.bytes = 8 * kMiB});
  REQUIRE(made.ok());
  Pool pool = std::move(*made);
  CHECK(pool.capacity_bytes() == 8 * kMiB);
  CHECK(pool.free_bytes() == 8 * kMiB);
  CHECK(pool.available_bytes() == 0);
  CHECK_FALSE(pool.allocate(1));
  CHECK(pool.populate_some(1));  // at least 2 MiB
  CHECK(pool.populated_bytes() == 2 * kMiB);
  CHECK(pool.allocate(2 * kMiB));
  CHECK_FALSE(pool.allocate(1));
  CHECK_FALSE(pool.is_populated());
  while (pool.populate_some(4 * kMiB)) {
  }
  CHECK(pool.is_populated());
  CHECK(pool.populated_bytes() == 8 * kMiB);
  CHECK(pool.allocate(6 * kMiB));
  CHECK_FALSE(pool.populate_some(1));
}

TEST_CASE("what cannot be populated is no longer capacity, and the rest is used") {
  auto made = Pool::create({.bytes = 8 * kMiB, .huge_pages = HugePages::kOff});
  REQUIRE(made.ok());
  Pool pool = std::move(*made);
  // Without a mapping there is nothing to populate.
  REQUIRE(::munmap(pool.region_base(0) + 2 * kMiB, 2 * kMiB) == 0);
  while (pool.populate_some(2 * kMiB)) {
  }
  CHECK(pool.failed_bytes() == 2 * kMiB);
  CHECK(pool.capacity_bytes() == 6 * kMiB);
  CHECK(pool.free_bytes() == 6 * kMiB);
  CHECK(pool.is_populated());
  const auto all = pool.allocate(6 * kMiB);
  REQUIRE(all);
  for (const Extent& extent : *all) {
    CHECK((extent.offset + extent.bytes <= 2 * kMiB || extent.offset >= 4 * kMiB));
  }
}

TEST_CASE("two threads populate each byte once") {
  auto made = Pool::create({.bytes = 32 * kMiB});
  REQUIRE(made.ok());
  Pool pool = std::move(*made);
  const auto populate = [&pool] {
    while (pool.populate_some(2 * kMiB)) {
    }
  };
  std::thread other(populate);
  populate();
  other.join();
  CHECK(pool.is_populated());
  CHECK(pool.available_bytes() == 32 * kMiB);
  CHECK(pool.check_integrity({}) == "");
}

TEST_CASE("sizes beyond 4 GiB do not wrap") {
  auto made = Pool::create({.bytes = 12 * kGiB, .populate_on_touch = true});
  REQUIRE(made.ok());
  Pool pool = std::move(*made);
  const std::uint64_t bytes = 9 * kGiB + 12'345;
  const auto extents = pool.allocate(bytes);
  REQUIRE(extents);
  CHECK(total(*extents) == bytes);
  CHECK(pool.free_bytes() == 3 * kGiB - 4 * 4096);
  const MutableBytes last = pool.bytes_of(extents->back());
  last.back() = std::byte{42};
  CHECK(pool.region_base(extents->back().region)[extents->back().offset + last.size() - 1] ==
        std::byte{42});
  pool.free(*extents);
  CHECK(pool.free_bytes() == 12 * kGiB);
}

TEST_CASE("a region cannot be resized or sealed further by those who are handed it") {
  Pool pool = populated_pool(2 * kMiB);
  const int fd = pool.region_fd(0);
  CHECK(::ftruncate(fd, 4096) != 0);
  CHECK(::ftruncate(fd, static_cast<off_t>(16 * kMiB)) != 0);
  CHECK(::fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0);
  CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("a forked child does not inherit the mapping") {
  Pool pool = populated_pool(2 * kMiB);
  std::byte* base = pool.region_base(0);
  const pid_t child = ::fork();
  if (child == 0) {
    unsigned char resident = 0;
    ::_exit(::mincore(base, 4096, &resident) != 0 ? 7 : 0);  // ENOMEM: nothing is mapped there
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("impossible pools are refused with a reason") {
  CHECK(Pool::create({.bytes = 0}).code() == Code::kSetup);
  CHECK(Pool::create({.bytes = 4095}).code() == Code::kSetup);
  CHECK(Pool::create({.bytes = 3 * kMiB, .huge_pages = HugePages::kOn}).code() == Code::kSetup);
  const auto many = Pool::create({.bytes = kGiB, .region_bytes = 2 * kMiB});
  REQUIRE_FALSE(many.ok());
  CHECK(many.error().message.find("regions") != std::string::npos);
}

// Values of a KV cache: blocks of several models and of their layers, some of odd sizes.
std::uint64_t mixed_size(std::mt19937_64& random) {
  constexpr std::uint64_t kSizes[] = {64 << 10,  96 << 10,   160 << 10, 256 << 10,
                                      896 << 10, 1536 << 10, 3 << 20};
  if (random() % 3 == 0) return (64 << 10) + random() % (1 << 20);
  return kSizes[random() % std::size(kSizes)];
}

TEST_CASE("at least 96 % of the pool holds values under churn of mixed sizes") {
  constexpr std::uint64_t kBytes = 128 * kMiB;
  auto made = Pool::create({.bytes = kBytes, .populate_on_touch = true});
  REQUIRE(made.ok());
  Pool pool = std::move(*made);
  std::mt19937_64 random(31);  // NOLINT: a fixed seed is the point
  std::vector<std::pair<Extents, std::uint64_t>> held;
  std::uint64_t value_bytes = 0;
  double worst = 1;
  std::uint64_t extent_count = 0;
  std::uint64_t values = 0;
  for (int step = 0; step < 60'000; ++step) {
    const std::uint64_t bytes = mixed_size(random);
    auto extents = pool.allocate(bytes);
    while (!extents) {
      // Refused only when what is free is truly less than this value needs.
      REQUIRE(pool.free_bytes() < whole_pages(bytes));
      if (step > 1'000) {  // else: the first filling
        worst = std::min(worst, static_cast<double>(value_bytes) / static_cast<double>(kBytes));
      }
      std::swap(held[random() % held.size()], held.back());
      pool.free(held.back().first);
      value_bytes -= held.back().second;
      held.pop_back();
      extents = pool.allocate(bytes);
    }
    extent_count += extents->size();
    ++values;
    value_bytes += bytes;
    held.emplace_back(std::move(*extents), bytes);
  }
  std::vector<const Extents*> owned;
  owned.reserve(held.size());
  for (const auto& [extents, bytes] : held) owned.push_back(&extents);
  CHECK(pool.check_integrity(owned) == "");
  const double extents_per_value = static_cast<double>(extent_count) / static_cast<double>(values);
  MESSAGE("value bytes of the pool's, worst: ", worst * 100,
          " %; extents a value: ", extents_per_value);
  CHECK(worst >= 0.96);
  CHECK(extents_per_value < 64);
}

}  // namespace
}  // namespace infinistore
