#include "core/transport/tcp/names.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <resolv.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace infinistore {
namespace {

using std::chrono::milliseconds;

DialDeadline in(milliseconds time) { return std::chrono::steady_clock::now() + time; }

SocketAddresses address(std::uint32_t number) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = number;
  SocketAddresses found(1);
  std::memcpy(&found[0].bytes, &v4, sizeof v4);
  found[0].size = sizeof v4;
  return found;
}

std::uint32_t number(const Result<SocketAddresses>& found) {
  REQUIRE(found.ok());
  sockaddr_in v4{};
  std::memcpy(&v4, &found.value().at(0).bytes, sizeof v4);
  return v4.sin_addr.s_addr;
}

// A name service that answers what it is told to, once it is let.
struct Service {
  Names::Lookup lookup() {
    return [this](const std::string&, std::uint16_t) -> Result<SocketAddresses> {
      ++asked;
      asked.notify_all();
      is_silent.wait(true);
      const std::uint32_t now = answer;
      if (now == 0) return Error{Code::kDisconnected, "unknown"};
      return address(now);
    };
  }
  void be_silent() { is_silent = true; }
  void speak() {
    is_silent = false;
    is_silent.notify_all();
  }

  std::atomic<bool> is_silent{false};
  std::atomic<std::uint32_t> answer{7};
  std::atomic<int> asked{0};
};

TEST_CASE("a name is looked up again each time, and a number never") {
  Service service;
  Names names(service.lookup());
  CHECK(number(names.find("server", 1, in(milliseconds(60'000)))) == 7);
  service.answer = 8;
  CHECK(number(names.find("server", 1, in(milliseconds(60'000)))) == 8);
  CHECK(names.find("127.0.0.1", 1, in(milliseconds(0))).ok());
  CHECK(names.find("::1", 1, in(milliseconds(0))).ok());
  CHECK(service.asked == 2);
}

TEST_CASE("a name service that is silent holds nobody past his deadline, and one thread") {
  Service service;
  Names names(service.lookup());
  service.be_silent();
  for (int i = 0; i < 5; ++i) {
    CHECK(names.find("server", 1, in(milliseconds(5))).code() == Code::kTimeout);
  }
  service.speak();
  CHECK(number(names.find("server", 1, in(milliseconds(60'000)))) == 7);
  CHECK(service.asked <= 2);  // the one that was late, and another if that had ended
}

TEST_CASE("a server is sought where it was while its name cannot be looked up") {
  Service service;
  Names names(service.lookup());
  CHECK(number(names.find("server", 1, in(milliseconds(60'000)))) == 7);
  service.answer = 0;
  CHECK(number(names.find("server", 1, in(milliseconds(60'000)))) == 7);
  CHECK(names.find("another", 1, in(milliseconds(60'000))).code() == Code::kDisconnected);
  service.answer = 9;
  service.be_silent();
  CHECK(number(names.find("server", 1, in(milliseconds(10)))) == 7);
  service.speak();
  CHECK(number(names.find("server", 1, in(milliseconds(60'000)))) == 9);
}

TEST_CASE("a lookup that runs serves all who ask meanwhile") {
  Service service;
  Names names(service.lookup());
  service.be_silent();
  std::vector<std::thread> askers;
  std::atomic<int> found{0};
  for (int i = 0; i < 8; ++i) {
    askers.emplace_back([&] {
      if (names.find("server", 1, in(milliseconds(60'000))).ok()) ++found;
    });
  }
  service.asked.wait(0);
  service.speak();
  for (auto& asker : askers) asker.join();
  CHECK(found == 8);
}

TEST_CASE("its end waits for the lookups that run") {
  Service service;
  std::thread later;
  {
    Names names(service.lookup());
    service.be_silent();
    CHECK(names.find("server", 1, in(milliseconds(5))).code() == Code::kTimeout);
    later = std::thread([&] { service.speak(); });
  }
  later.join();
  CHECK(service.asked == 1);
}

#if defined(__GLIBC__)
// A thread that ends with one takes a lock of glibc's, at a moment that no fork() waits for; and a
// child that is born then has no names for ever.
TEST_CASE("a lookup leaves no state of the resolver to the next thread on its stack") {
  CHECK(process_names().find("localhost", 1, in(milliseconds(20'000))).ok());
  int servers = -1;
  std::thread next([&] { servers = _res.nscount; });
  next.join();
  CHECK(servers == 0);
}
#endif

}  // namespace
}  // namespace infinistore
