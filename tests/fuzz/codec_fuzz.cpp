// Fuzzes frame and codec: whatever the bytes, decoding ends, and what it accepts is stable.
//
// Under clang's -fsanitize=fuzzer (INFINISTORE_LIBFUZZER) it is a libFuzzer target.  Else it
// mutates the samples of every message for so many seconds as its argument says, from a seed that
// it prints.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "core/base/check.h"
#include "core/wire/codec.h"
#include "core/wire/frame.h"
#include "core/wire/message_samples.h"

namespace infinistore {
namespace {

// Accepted once, a message must survive being said again.
template <class Decode>
void check(Bytes body, Decode decode) {
  const auto message = decode(body);
  if (!message) return;
  const Body again = encode(*message);
  const auto second = decode(Bytes(again));
  KV_CHECK(second.has_value());
  KV_CHECK(encode(*second) == again);
}

void check_all(Bytes body) {
  if (const auto header = decode_header(body)) KV_CHECK(decode_header(encode_header(*header)));
  check(body, decode_hello);
  check(body, decode_welcome);
  check(body, decode_put);
  check(body, decode_result);
  check(body, decode_get);
  check(body, decode_match);
  check(body, decode_matched);
  check(body, decode_keys);
  check(body, decode_lease);
  check(body, decode_counters);
  check(body, decode_error);
  for (const bool shared : {false, true}) {
    check(body, [shared](Bytes bytes) { return decode_grant(bytes, shared); });
    check(body, [shared](Bytes bytes) { return decode_fill(bytes, shared); });
    check(body, [shared](Bytes bytes) { return decode_data(bytes, shared); });
  }
}

}  // namespace
}  // namespace infinistore

#ifdef INFINISTORE_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  infinistore::check_all(std::as_bytes(std::span(data, size)));
  return 0;
}

#else

namespace infinistore {
namespace {

std::vector<Body> corpus() {
  namespace s = samples;
  std::vector<Body> all;
  for (auto& bodies :
       {s::hello(), s::welcome(), s::put(), s::grant(false), s::grant(true), s::fill(false),
        s::fill(true), s::result(), s::get(), s::data(false), s::data(true), s::match(),
        s::matched(), s::keys(), s::lease(), s::counters(), s::error()}) {
    all.insert(all.end(), bodies.begin(), bodies.end());
  }
  return all;
}

void mutate(Body& body, std::mt19937_64& random) {
  const auto at = body.empty() ? 0 : random() % body.size();
  switch (random() % 4) {
    case 0:
      if (!body.empty()) body[at] = static_cast<std::byte>(random());
      break;
    case 1:
      body.resize(at);
      break;
    case 2:
      body.insert(body.begin() + static_cast<std::ptrdiff_t>(at), static_cast<std::byte>(random()));
      break;
    default:
      if (!body.empty()) body.erase(body.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

}  // namespace
}  // namespace infinistore

int main(int argc, char** argv) {
  using Seconds = std::chrono::duration<double>;
  const Seconds time(argc > 1 ? std::atof(argv[1]) : 2.0);
  const std::uint64_t seed =
      argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  std::mt19937_64 random(seed);
  const auto corpus = infinistore::corpus();
  unsigned long long count = 0;
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < time) {
    for (int i = 0; i < 1000; ++i, ++count) {
      auto body = corpus[random() % corpus.size()];
      for (auto changes = random() % 6; changes > 0; --changes) infinistore::mutate(body, random);
      infinistore::check_all(body);
    }
  }
  std::printf("%llu bodies\n", count);
  return 0;
}

#endif
