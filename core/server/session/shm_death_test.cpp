// Clients on shared memory that die or vanish: what they may still write into is not reused.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "core/server/session/session_testing.h"
#include "core/transport/shm/listen.h"

namespace infinistore {
namespace {

using testing::Harness;
using testing::Peer;

Body framed(Opcode opcode, std::uint64_t request_id, const Body& body) {
  const auto header = encode_header({.opcode = opcode,
                                     .flags = 0,
                                     .request_id = request_id,
                                     .body_bytes = static_cast<std::uint32_t>(body.size()),
                                     .payload_bytes = 0},
                                    body);
  Body frame(header.begin(), header.end());
  frame.insert(frame.end(), body.begin(), body.end());
  return frame;
}

enum class Way { kStays, kHangsUp, kLeavesForkedChild };

// A process of its own that connects, is granted a put, and then waits to be killed.
class Writer {
 public:
  Writer(const std::string& path, const Body& words, Way way) {
    REQUIRE(::pipe2(pipe_.data(), O_CLOEXEC) == 0);
    REQUIRE(::pipe2(go_.data(), O_CLOEXEC) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) live(path, words, way);  // from here on system calls only: we have threads
  }
  ~Writer() {
    kill();
    if (child_ > 0) ::kill(child_, SIGKILL);
    for (const int fd : {pipe_[0], pipe_[1], go_[0], go_[1]}) ::close(fd);
  }

  // Once the process has said all that it says.
  void await() { REQUIRE(::read(pipe_[0], &child_, sizeof child_) == sizeof child_); }
  void hang_up() { REQUIRE(::write(go_[1], "g", 1) == 1); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  [[noreturn]] void live(const std::string& path, const Body& words, Way way) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) ::_exit(1);
    if (::write(fd, words.data(), words.size()) != static_cast<ssize_t>(words.size())) ::_exit(2);
    pid_t forked = 0;
    if (way == Way::kLeavesForkedChild) {
      forked = ::fork();
      while (forked == 0) ::pause();
    }
    if (way == Way::kHangsUp) {
      char go = 0;
      if (::read(go_[0], &go, 1) != 1) ::_exit(3);
      ::close(fd);
    }
    if (::write(pipe_[1], &forked, sizeof forked) != sizeof forked) ::_exit(4);
    for (;;) ::pause();
  }

  std::array<int, 2> pipe_{};  // from the process: it has said all
  std::array<int, 2> go_{};    // to it: hang up
  pid_t pid_ = -1;
  pid_t child_ = 0;  // of the writer
};

struct Fixture {
  explicit Fixture(testing::HarnessOptions options = {})
      : harness{"shm", std::move(options)},
        path("/tmp/infinistore-test-" + std::to_string(::getpid()) + ".sock") {
    auto made = listen_unix(path);
    REQUIRE(made.ok());
    listener = std::move(made).value();
    ::fcntl(listener.get(), F_SETFL, 0);
  }
  ~Fixture() { ::unlink(path.c_str()); }

  Body words() {
    Hello hello;
    hello.nonce = harness.identity().nonce;
    hello.client_name = "writer";
    PutRequest put{.keys = {"k", "staged"}};
    put.ranges.items = {{100'000, 0, 100'000}, {200'000, 0, 100'000}};
    auto all = framed(Opcode::kHello, 1, encode(hello));
    const auto second = framed(Opcode::kPut, 2, encode(put));
    all.insert(all.end(), second.begin(), second.end());
    return all;
  }
  void serve_one() { harness.serve(UniqueFd(::accept(listener.get(), nullptr, nullptr))); }
  StoreCounters counters() { return harness.store().counters(); }

  Harness harness;
  std::string path;
  UniqueFd listener;
};

}  // namespace

TEST_CASE("the unix socket is its owner's only, and a dead server's is taken over") {
  Fixture f;
  struct stat facts{};
  REQUIRE(::stat(f.path.c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0600);
  CHECK(listen_unix(f.path).code() == Code::kSetup);  // somebody listens
  f.listener.reset();
  CHECK(listen_unix(f.path).ok());
  CHECK(listen_unix(std::string(200, 'x')).code() == Code::kSetup);
  CHECK(listen_unix("/no/such/folder/socket").code() == Code::kSetup);
}

TEST_CASE("a killed writer's memory is free at once, though a forked child holds its socket") {
  Fixture f;
  Writer writer(f.path, f.words(), Way::kLeavesForkedChild);
  f.serve_one();
  writer.await();
  CHECK(f.harness.eventually([&] { return f.counters().reserved_bytes >= 300'000; }));
  CHECK(f.harness.sessions_are(1));
  writer.kill();
  CHECK(f.harness.sessions_are(0));
  CHECK(f.counters().reserved_bytes == 0);
  CHECK(f.counters().quarantined_bytes == 0);
  CHECK(f.harness.worker().metrics().unfenced_ends.get() == 0);
}

TEST_CASE("a writer that hangs up but lives keeps its granted memory out of use until it is gone") {
  Fixture f;
  Writer writer(f.path, f.words(), Way::kHangsUp);
  f.serve_one();
  CHECK(f.harness.eventually([&] { return f.counters().reserved_bytes >= 300'000; }));
  writer.hang_up();
  writer.await();
  CHECK(f.harness.sessions_are(0));
  CHECK(f.counters().reserved_bytes == 0);
  CHECK(f.counters().quarantined_bytes >= 300'000);
  CHECK(f.harness.store().check_integrity() == "");
  CHECK(f.harness.worker().metrics().unfenced_ends.get() == 1);
  writer.kill();
  CHECK(f.harness.eventually([&] { return f.counters().quarantined_bytes == 0; }));
}

TEST_CASE("without fences, for tests only, what a living writer may still touch is free at once") {
  testing::HarnessOptions options;
  options.without_fencing = true;
  Fixture f(options);
  Writer writer(f.path, f.words(), Way::kHangsUp);
  f.serve_one();
  CHECK(f.harness.eventually([&] { return f.counters().reserved_bytes >= 300'000; }));
  writer.hang_up();
  writer.await();
  CHECK(f.harness.sessions_are(0));
  CHECK(f.counters().reserved_bytes == 0);
  CHECK(f.counters().quarantined_bytes == 0);
}

TEST_CASE("GOODBYE says that nothing is written any more: its memory is free at once") {
  Harness harness("shm");
  auto peer = harness.connect();
  peer.begin_put({{"k", "value"}});
  peer.send(Opcode::kGoodbye, {});
  CHECK(harness.sessions_are(0));
  CHECK(harness.store().counters().quarantined_bytes == 0);
  CHECK(harness.store().counters().reserved_bytes == 0);
}

}  // namespace infinistore
