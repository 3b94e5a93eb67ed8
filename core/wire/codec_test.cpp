#include "core/wire/codec.h"

#include <doctest/doctest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/base/limits.h"
#include "core/wire/message_samples.h"

namespace infinistore {
namespace {

// Decodes and encodes again; nullopt if the body was refused.  Equal bytes are the round trip: the
// encoding has no two ways to say one thing.
using Recode = std::function<std::optional<Body>(Bytes)>;

struct Case {
  std::string name;
  std::vector<Body> samples;
  Recode recode;
};

template <class Decode>
Recode recode(Decode decode) {
  return [decode](Bytes body) -> std::optional<Body> {
    const auto message = decode(body);
    return message ? std::optional(encode(*message)) : std::nullopt;
  };
}

std::vector<Case> cases() {
  namespace s = samples;
  const auto grant = [](bool shared) {
    return recode([shared](Bytes body) { return decode_grant(body, shared); });
  };
  const auto fill = [](bool shared) {
    return recode([shared](Bytes body) { return decode_fill(body, shared); });
  };
  const auto data = [](bool shared) {
    return recode([shared](Bytes body) { return decode_data(body, shared); });
  };
  return {
      {"hello", s::hello(), recode(decode_hello)},
      {"welcome", s::welcome(), recode(decode_welcome)},
      {"put", s::put(), recode(decode_put)},
      {"grant over tcp", s::grant(false), grant(false)},
      {"grant over shm", s::grant(true), grant(true)},
      {"fill over tcp", s::fill(false), fill(false)},
      {"fill over shm", s::fill(true), fill(true)},
      {"result", s::result(), recode(decode_result)},
      {"get", s::get(), recode(decode_get)},
      {"data over tcp", s::data(false), data(false)},
      {"data over shm", s::data(true), data(true)},
      {"match", s::match(), recode(decode_match)},
      {"matched", s::matched(), recode(decode_matched)},
      {"keys", s::keys(), recode(decode_keys)},
      {"lease", s::lease(), recode(decode_lease)},
      {"counters", s::counters(), recode(decode_counters)},
      {"error", s::error(), recode(decode_error)},
  };
}

template <class Test>
void for_each_sample(Test test) {
  for (const auto& each : cases()) {
    CAPTURE(each.name);
    REQUIRE_FALSE(each.samples.empty());
    for (const auto& sample : each.samples) test(sample, each.recode);
  }
}

}  // namespace

TEST_CASE("every message comes back as it went") {
  for_each_sample([](const Body& sample, const Recode& recode) {
    const auto back = recode(sample);
    REQUIRE(back);
    CHECK(*back == sample);
  });
}

TEST_CASE("a body cut anywhere, or with one byte more, is refused") {
  for_each_sample([](const Body& sample, const Recode& recode) {
    for (std::size_t size = 0; size < sample.size(); ++size) {
      // A copy of that very size, so that a sanitizer sees a read past its end.
      const Body cut(sample.begin(), sample.begin() + static_cast<std::ptrdiff_t>(size));
      CAPTURE(size);
      CHECK_FALSE(recode(cut));
    }
    Body longer = sample;
    longer.push_back(std::byte{0});
    CHECK_FALSE(recode(longer));
  });
}

TEST_CASE("a changed body is refused, or says exactly what it says") {
  std::mt19937_64 random(7);
  std::size_t accepted = 0;
  for_each_sample([&](const Body& sample, const Recode& recode) {
    for (int i = 0; i < 2000; ++i) {
      Body changed = sample;
      const auto changes = 1 + random() % 4;
      for (std::size_t change = 0; change < changes && !changed.empty(); ++change) {
        changed[random() % changed.size()] = static_cast<std::byte>(random());
      }
      const auto back = recode(changed);
      if (!back) continue;
      ++accepted;
      REQUIRE(*back == changed);
    }
  });
  CHECK(accepted > 1000);
}

TEST_CASE("random bodies do no harm") {
  std::mt19937_64 random(11);
  for (const auto& each : cases()) {
    for (int i = 0; i < 5000; ++i) {
      Body body(random() % 200);
      for (auto& byte : body) byte = static_cast<std::byte>(random());
      const auto back = each.recode(body);
      if (back) REQUIRE(*back == body);
    }
  }
}

TEST_CASE("a count far beyond the body costs no memory") {
  Body body(4, std::byte{0xFF});  // 2^32 - 1 of anything
  CHECK_FALSE(decode_keys(body));
  CHECK_FALSE(decode_result(body));
  CHECK_FALSE(decode_counters(body));
  CHECK_FALSE(decode_data(body, true));
  CHECK_FALSE(decode_grant(body, true));
  CHECK_FALSE(decode_fill(body, true));
  CHECK_FALSE(decode_fill(body, false));
}

TEST_CASE("a fill over tcp counts no more items than a batch has") {
  CHECK(decode_fill(encode(FillRequest{.granted_count = kBatchKeysMax, .checksums = {}}), false));
  CHECK_FALSE(
      decode_fill(encode(FillRequest{.granted_count = kBatchKeysMax + 1, .checksums = {}}), false));
}

TEST_CASE("what contradicts itself is refused") {
  CHECK_FALSE(decode_keys(samples::key_body({""})));
  CHECK_FALSE(decode_put(samples::with_byte(samples::put().front(), 0, 3)));  // on_exists
  CHECK_FALSE(decode_put(samples::with_byte(samples::put().front(), 2, 1)));  // zero
  CHECK_FALSE(decode_match(encode(MatchRequest{.lease_ms = 0, .group = 0, .keys = {"a"}})));
  CHECK_FALSE(decode_match(encode(MatchRequest{.lease_ms = 0, .group = 2, .keys = {"a"}})));
  CHECK_FALSE(decode_result(samples::with_byte(samples::result().back(), 4, kCodeCount)));
  CHECK_FALSE(decode_error(samples::with_byte(samples::error().back(), 0, kCodeCount)));
}

TEST_CASE("the largest batch fits a body") {
  const std::string long_key(kKeyBytesMax, 'k');
  PutRequest put;
  put.keys.assign(kBatchKeysMax, long_key);
  put.parents.assign(kBatchKeysMax, long_key);
  put.depths.assign(kBatchKeysMax, 1);
  put.ranges.items.assign(kBatchKeysMax, {1, 2, 3});
  const auto body = encode(put);
  CHECK(body.size() <= kBodyBytesMax);
  const auto back = decode_put(body);
  REQUIRE(back);
  CHECK(back->keys.size() == kBatchKeysMax);
  CHECK(back->parents.back() == long_key);
}

}  // namespace infinistore
