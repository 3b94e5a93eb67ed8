#include <doctest/doctest.h>

#include "core/base/limits.h"
#include "core/store/store_testing.h"

namespace infinistore {
namespace {

using testing::options_with;
using testing::pool_of;
using testing::put;

using State = KeyStory::State;

struct Fixture {
  explicit Fixture(std::size_t pages = 8)
      : store(pool_of(pages * 4096), options_with("lru"), clock) {}

  KeyAnswer explain(std::string_view key, std::string_view space = "") {
    const auto answers = store.explain(space, std::span(&key, 1));
    REQUIRE(answers.size() == 1);
    return answers.front();
  }
  void put_all(NamespaceId space, const std::vector<std::string>& keys) {
    for (const auto& key : keys) REQUIRE(put(store, space, key, "value") == Code::kOk);
  }

  ManualClock clock;
  Store store;
};

TEST_CASE("a key is present, being written, or was never seen") {
  Fixture f;
  f.put_all(0, {"there"});
  const auto reservation = f.store.reserve({.key = "coming", .value_bytes = 1});
  CHECK(f.explain("there").story.state == State::kPresent);
  CHECK(f.explain("coming").story.state == State::kWritten);
  CHECK(f.explain("never").story.state == State::kUnknown);
  CHECK(f.explain("never").story.forgotten_at == 0);
  CHECK(f.explain("there", "no such namespace").story.state == State::kUnknown);
}

TEST_CASE("a key that was evicted says when, and whose writes pressed") {
  Fixture f;
  const auto greedy = f.store.intern("greedy").value();
  f.clock.advance(100 * kSecond);
  f.put_all(0, {"old"});
  std::vector<std::string> many;
  for (int i = 0; i < 8; ++i) many.push_back("new" + std::to_string(i));
  f.put_all(greedy, many);
  f.clock.advance(50 * kSecond);
  const auto answer = f.explain("old");
  CHECK(answer.story.state == State::kLeft);
  CHECK(answer.story.departure.reason == Reason::kRoom);
  CHECK(answer.pressing == "greedy");
  CHECK(answer.ago >= 50 * kSecond);
  CHECK(answer.ago < 51 * kSecond);
}

TEST_CASE("what the watermark, a caller, a purge or a wrong sum took says so") {
  Fixture f;
  const auto purged = f.store.intern("purged").value();
  f.put_all(0, {"watermark"});
  f.store.evict(1);
  CHECK(f.explain("watermark").story.departure.reason == Reason::kWatermark);
  f.put_all(0, {"erased", "corrupt"});
  f.put_all(purged, {"key"});
  f.store.erase(0, "erased");
  f.store.purge(purged);
  f.store.drop_corrupt(*f.store.find(0, "corrupt"));
  CHECK(f.explain("erased").story.departure.reason == Reason::kErased);
  CHECK(f.explain("key", "purged").story.departure.reason == Reason::kPurged);
  CHECK(f.explain("corrupt").story.departure.reason == Reason::kCorrupt);
  f.put_all(0, {"erased"});
  CHECK(f.explain("erased").story.state == State::kPresent);
}

TEST_CASE("a key that only other namespaces have is found there") {
  Fixture f;
  const auto one = f.store.intern("one").value();
  const auto two = f.store.intern("two").value();
  f.put_all(one, {"key"});
  f.put_all(two, {"key", "other"});
  CHECK(f.explain("key").elsewhere == std::vector<std::string>{"one", "two"});
  CHECK(f.explain("key", "one").elsewhere.empty());
  CHECK(f.explain("other", "one").elsewhere == std::vector<std::string>{"two"});
}

TEST_CASE("misses are counted by what became of the key") {
  Fixture f;
  f.put_all(0, {"evicted"});
  f.store.evict(1);
  f.put_all(0, {"erased", "there"});
  f.store.erase(0, "erased");
  f.store.find(0, "evicted");
  f.store.find(0, "erased");
  f.store.find(0, "never");
  f.store.find(0, "never", false);  // counted before
  const std::vector<std::string_view> prompt = {"there", "evicted", "never", "never2"};
  CHECK(f.store.match_prefix(0, prompt, 1, nullptr) == 1);
  const auto counters = f.store.counters();
  CHECK(counters.hits == 1);
  CHECK(counters.misses == 6);
  CHECK(counters.misses_evicted == 1 + 3);  // the prompt's end is for want of the first missing
  CHECK(counters.misses_erased == 1);
  CHECK(counters.misses_new == 1);
}

TEST_CASE("a namespace's keys, bytes, hits and misses are its own") {
  Fixture f;
  const auto one = f.store.intern("one").value();
  f.clock.advance(kSecond);
  f.store.use_of(one).at = f.clock.now();
  f.clock.advance(3 * kSecond);
  f.put_all(one, {"a", "b"});
  f.store.find(one, "a");
  f.store.find(one, "none");
  const auto spaces = f.store.spaces();
  REQUIRE(spaces.size() == 2);
  CHECK(spaces[1].name == "one");
  CHECK(spaces[1].counts.keys == 2);
  CHECK(spaces[1].counts.bytes == 2 * 4096);
  CHECK(spaces[1].counts.hits == 1);
  CHECK(spaces[1].counts.misses == 1);
  CHECK(spaces[1].idle == 3 * kSecond);
  CHECK_FALSE(spaces[0].idle);
  CHECK(spaces[0].counts.keys == 0);
  f.store.erase(one, "a");
  CHECK(f.store.spaces()[1].counts.bytes == 4096);
  CHECK(f.store.check_integrity() == "");
}

TEST_CASE("no more keys are explained at once than the limit says") {
  Fixture f;
  const std::vector<std::string_view> keys(kExplainedKeysMax + 1, "key");
  CHECK(f.store.explain("", keys).size() == kExplainedKeysMax);
}

}  // namespace
}  // namespace infinistore
