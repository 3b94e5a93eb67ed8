#include "core/store/past/departures.h"

#include <doctest/doctest.h>

namespace infinistore {
namespace {

TEST_CASE("what left is remembered with its reason and its time") {
  Departures departures(64);
  CHECK_FALSE(departures.find(7));
  departures.note(7, {.at = 100 * kSecond, .reason = Reason::kRoom, .pressing = 65536});
  const auto found = departures.find(7);
  REQUIRE(found);
  CHECK(found->reason == Reason::kRoom);
  CHECK(found->pressing == 65536);
  CHECK(found->at <= 100 * kSecond);
  CHECK(found->at > 99 * kSecond);
  CHECK_FALSE(departures.find(7 + 64));
  CHECK(departures.forgotten_at() == 0);
}

TEST_CASE("a key that left again is remembered once, as of its last time") {
  Departures departures(4);
  for (int i = 1; i <= 10; ++i) {
    departures.note(1, {.at = i * kSecond, .reason = i < 10 ? Reason::kRoom : Reason::kErased});
  }
  CHECK(departures.find(1)->reason == Reason::kErased);
  CHECK(departures.forgotten_at() == 0);
}

TEST_CASE("the oldest of a bucket is forgotten, and until when is known") {
  Departures departures(4);  // one bucket
  for (std::uint64_t hash = 1; hash <= 4; ++hash) {
    departures.note(hash, {.at = static_cast<Nanos>(hash) * 10 * kSecond});
  }
  CHECK(departures.forgotten_at() == 0);
  departures.note(5, {.at = 50 * kSecond});
  CHECK_FALSE(departures.find(1));
  for (std::uint64_t hash = 2; hash <= 5; ++hash) CHECK(departures.find(hash));
  CHECK(departures.forgotten_at() > 9 * kSecond);
  CHECK(departures.forgotten_at() <= 10 * kSecond);
}

}  // namespace
}  // namespace infinistore
