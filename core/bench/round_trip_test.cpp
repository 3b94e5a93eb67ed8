#include "core/bench/round_trip.h"

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>

namespace infinistore {
namespace {

TEST_CASE("messages go round over a socket until it closes") {
  std::array<int, 2> pair{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) == 0);
  Code far = Code::kInvalid;
  std::thread thread([&] { far = echo(pair[1], pair[1], 64); });
  std::array<std::uint64_t, 50> taken{};
  CHECK(round_trips(pair[0], pair[0], 64, taken) == Code::kOk);
  CHECK(std::all_of(taken.begin(), taken.end(), [](std::uint64_t ns) { return ns > 0; }));
  ::close(pair[0]);
  thread.join();
  CHECK(far == Code::kOk);
  std::array<std::uint64_t, 1> none{};
  CHECK(round_trips(pair[0], pair[0], 64, none) != Code::kOk);
  ::close(pair[1]);
}

TEST_CASE("eventfds wake each other: a message of theirs is a count") {
  const int there = ::eventfd(0, EFD_CLOEXEC);
  const int back = ::eventfd(0, EFD_CLOEXEC);
  std::array<std::uint64_t, 20> near{};
  // The far end has no stream that ends: it takes as many turns as the near end.
  std::thread thread([&] {
    for (std::size_t i = 0; i < near.size(); ++i) {
      std::uint64_t count = 0;
      CHECK(::read(there, &count, sizeof count) == sizeof count);
      CHECK(count == 1);
      CHECK(::write(back, &count, sizeof count) == sizeof count);
    }
  });
  CHECK(round_trips(there, back, 8, near) == Code::kOk);
  thread.join();
  ::close(there);
  ::close(back);
}

TEST_CASE("a message of no bytes, or of too many, is refused") {
  std::array<std::uint64_t, 1> taken{};
  CHECK(round_trips(0, 0, 0, taken) == Code::kInvalid);
  CHECK(round_trips(0, 0, kRoundTripBytesMax + 1, taken) == Code::kInvalid);
  CHECK(echo(0, 0, 0) == Code::kInvalid);
}

}  // namespace
}  // namespace infinistore
