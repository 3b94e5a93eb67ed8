// Values of an owner that leave for its own quota.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/store/quota/seats.h"
#include "core/store/store_testing.h"

namespace infinistore {
namespace {

using testing::for_each_policy;
using testing::get;
using testing::options_with;
using testing::pool_of;
using testing::put;
using testing::still_clock;

constexpr std::uint64_t kPage = kPageBytesMin;
constexpr std::uint64_t kQuotaPages = 8;
constexpr std::uint64_t kPoolPages = 64;

// Two owners with namespaces of their own; `a` has the quota.
struct Fixture {
  explicit Fixture(std::string_view policy)
      : store(pool_of(kPoolPages * kPage), options(policy), still_clock()),
        a(*store.intern("a/x")),
        more_of_a(*store.intern("a/y")),
        b(*store.intern("b/x")) {}
  ~Fixture() { CHECK(store.check_integrity() == ""); }

  static StoreOptions options(std::string_view policy) {
    auto given = options_with(policy);
    given.quotas = {{.owner = "a", .bytes_max = kQuotaPages * kPage}, {.owner = "b"}};
    return given;
  }
  Code put_page(NamespaceId space, int number) {
    return put(store, space, std::to_string(number), std::string(kPage, 'v'));
  }
  // Which of the numbers up to `count` are there.
  std::vector<int> there(NamespaceId space, int count) {
    std::vector<int> found;
    for (int i = 0; i < count; ++i) {
      if (store.exists(space, std::to_string(i))) found.push_back(i);
    }
    return found;
  }

  Store store;
  NamespaceId a, more_of_a, b;
};

}  // namespace

TEST_CASE("the least recently used of an owner leave for its quota, and no others") {
  for_each_policy([](std::string_view policy) {
    Fixture f(policy);
    for (int i = 0; i < 10; ++i) CHECK(f.put_page(f.b, i) == Code::kOk);
    for (int i = 0; i < 8; ++i) CHECK(f.put_page(f.a, i) == Code::kOk);
    CHECK(get(f.store, f.a, "0").has_value());  // a use
    for (int i = 0; i < 3; ++i) CHECK(f.put_page(f.more_of_a, i) == Code::kOk);
    CHECK(f.there(f.a, 8) == std::vector{0, 4, 5, 6, 7});
    CHECK(f.there(f.more_of_a, 3).size() == 3);
    CHECK(f.there(f.b, 10).size() == 10);
    const QuotaUse use = f.store.quota_use("a");
    CHECK(use.bytes == kQuotaPages * kPage);
    CHECK(use.evictions == 3);
    CHECK(use.evicted_bytes == 3 * kPage);
    CHECK(f.store.counters().evictions == 3);
    const std::string_view gone[] = {"1"};
    const auto story = f.store.explain("a/x", gone).at(0).story;
    CHECK(story.state == KeyStory::State::kLeft);
    CHECK(story.departure.reason == Reason::kQuota);
    CHECK_FALSE(f.store.find(f.a, "1").has_value());
    CHECK(f.store.counters().misses_evicted == 1);
  });
}

TEST_CASE("a chain leaves for a quota from its end") {
  Fixture f("lru");
  for (int i = 0; i < 8; ++i) {
    const auto key = std::to_string(i);
    auto made = f.store.reserve(
        {.space = f.a, .key = key, .value_bytes = kPage, .depth = static_cast<std::uint32_t>(i)});
    REQUIRE(made.ok());
    REQUIRE(testing::fill(f.store, *made, 0, std::string(kPage, 'v')) == Code::kOk);
    CHECK(std::move(*made).seal() == Code::kOk);
  }
  for (int i = 0; i < 3; ++i) CHECK(f.put_page(f.more_of_a, i) == Code::kOk);
  CHECK(f.there(f.a, 8) == std::vector{0, 1, 2, 3, 4});
}

TEST_CASE("what is read or written stays, and without anything else the quota refuses") {
  Fixture f("lru");
  std::vector<Lease> held;
  for (int i = 0; i < 7; ++i) {
    CHECK(f.put_page(f.a, i) == Code::kOk);
    held.push_back(*f.store.find(f.a, std::to_string(i)));
  }
  auto draft = f.store.reserve({.space = f.a, .key = "draft", .value_bytes = kPage});
  REQUIRE(draft.ok());
  CHECK(f.put_page(f.a, 8) == Code::kQuotaExceeded);
  CHECK(f.store.counters().refused == 1);
  CHECK(f.put_page(f.b, 8) == Code::kOk);
  held.pop_back();
  CHECK(f.put_page(f.a, 8) == Code::kOk);
  CHECK(f.there(f.a, 9) == std::vector{0, 1, 2, 3, 4, 5, 8});
}

TEST_CASE("a value larger than the quota drives nothing out") {
  Fixture f("lru");
  for (int i = 0; i < 8; ++i) CHECK(f.put_page(f.a, i) == Code::kOk);
  CHECK(put(f.store, f.a, "large", std::string(kQuotaPages * kPage + 1, 'v')) == Code::kTooLarge);
  CHECK(f.there(f.a, 8).size() == 8);
  CHECK(put(f.store, f.a, "all", std::string(kQuotaPages * kPage, 'v')) == Code::kOk);
  CHECK(f.there(f.a, 8).empty());
}

TEST_CASE("what a look holds leaves its seat, and its bytes come with the look's end") {
  Fixture f("lru");
  for (int i = 0; i < 8; ++i) CHECK(f.put_page(f.a, i) == Code::kOk);
  auto look = f.store.find_quietly(f.a, "0");
  CHECK(f.put_page(f.a, 8) == Code::kOk);
  CHECK(f.there(f.a, 9) == std::vector{2, 3, 4, 5, 6, 7, 8});
  CHECK(f.store.quota_use("a").bytes == kQuotaPages * kPage);
  look.reset();
  CHECK(f.store.quota_use("a").bytes == (kQuotaPages - 1) * kPage);
}

TEST_CASE("the pool's own eviction takes entries with a seat too") {
  for_each_policy([](std::string_view policy) {
    Fixture f(policy);
    for (int i = 0; i < 8; ++i) CHECK(f.put_page(f.a, i) == Code::kOk);
    CHECK(f.store.evict(UINT64_MAX) == 8 * kPage);
    CHECK(f.store.quota_use("a").bytes == 0);
    CHECK(f.store.quota_use("a").evictions == 0);
    for (int i = 0; i < 9; ++i) CHECK(f.put_page(f.a, i) == Code::kOk);
    CHECK(f.store.purge(f.a) == 8);
    CHECK(f.put_page(f.a, 0) == Code::kOk);
  });
}

TEST_CASE("threads that write and read at random never pass the quota") {
  for_each_policy([](std::string_view policy) {
    Fixture f(policy);
    const auto work = [&f](unsigned seed) {
      std::mt19937 random(seed);
      std::vector<Lease> held;
      for (int step = 0; step < 2000; ++step) {
        const auto space = random() % 2 == 0 ? f.a : f.more_of_a;
        const auto key = std::to_string(random() % 24);
        const Code code = put(f.store, space, key, std::string(1 + random() % (2 * kPage), 'v'),
                              OnExists::kReplace);
        CHECK((code == Code::kOk || code == Code::kQuotaExceeded));
        CHECK(f.store.quota_use("a").bytes <= (kQuotaPages + 2 * 3) * kPage);  // 3 that try
        if (auto lease = f.store.find(space, key)) held.push_back(std::move(*lease));
        if (held.size() > 1) held.erase(held.begin());
      }
    };
    std::vector<std::thread> threads;
    for (unsigned seed = 1; seed <= 3; ++seed) threads.emplace_back(work, seed);
    for (auto& thread : threads) thread.join();
    CHECK(f.store.quota_use("a").bytes <= kQuotaPages * kPage);
    CHECK(f.store.quota_use("a").evictions > 0);
  });
}

}  // namespace infinistore
