#include "core/transport/shm/client_link.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>

#include "core/base/checksum.h"
#include "core/wire/codec.h"

namespace infinistore {
namespace {

constexpr std::size_t kPoolBytes = 1 << 20;
constexpr std::size_t kBlock = 100'000;

struct Ends {
  Ends() {
    std::array<int, 2> fds{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) == 0);
    client = UniqueFd(fds[0]);
    server = UniqueFd(fds[1]);
  }
  UniqueFd client;
  UniqueFd server;
};

// A client's link to a pool whose server is a bare socket.
struct Pair : StreamOwner {
  explicit Pair(bool verifies, PoolAccess access = PoolAccess::kReadWrite)
      : server(std::move(ends.server)) {
    UniqueFd fd(::memfd_create("link-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(::ftruncate(fd.get(), kPoolBytes) == 0);
    ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    void* const base = ::mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    REQUIRE(base != MAP_FAILED);
    pool = {static_cast<std::byte*>(base), kPoolBytes};
    for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = static_cast<std::byte>(i * 7);
    std::vector<UniqueFd> fds;
    const auto path = "/proc/self/fd/" + std::to_string(fd.get());
    if (access == PoolAccess::kRead) fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    fds.push_back(std::move(fd));
    const std::array<std::uint64_t, 1> sizes = {kPoolBytes};
    auto mapped = ClientPool::map(std::move(fds), sizes, access);
    REQUIRE(mapped.ok());
    link = make_shm_link(stream, std::move(*mapped), verifies, crew, poller);
    const auto address = reinterpret_cast<std::uintptr_t>(target.data());
    addresses = {address};
    transfer.request_id = 1;
    transfer.items = {{.addresses = addresses, .segment_bytes = kBlock, .position = 0}};
    transfer.extents = {{{0, 4096, kBlock}}};
    transfer.checksums = {checksum(pool.subspan(4096, kBlock), 0)};
  }
  ~Pair() override { ::munmap(pool.data(), pool.size()); }
  Payload* on_frame(const FrameHeader&, Bytes) override { return nullptr; }
  void on_payload(const FrameHeader&) override {}
  void on_sent(std::uint64_t) override {}
  void on_close(const Error&) override {}

  Ends ends;
  UniqueFd server;
  MutableBytes pool;
  Poller poller;
  Stream stream{std::move(ends.client), poller, *this};
  Crew crew;
  std::unique_ptr<Link> link;
  std::vector<std::byte> target = std::vector<std::byte>(kBlock);
  std::vector<std::uint64_t> addresses;
  Transfer transfer;
};

}  // namespace

TEST_CASE("what is read from the pool is right, verified or not") {
  for (const bool verifies : {true, false}) {
    CAPTURE(verifies);
    Pair pair(verifies);
    const auto moved = pair.link->receive(pair.transfer);
    REQUIRE(moved.ok());
    CHECK(moved.value() == Moved::kAll);
    CHECK(std::ranges::equal(pair.target, pair.pool.subspan(4096, kBlock)));
    CHECK_FALSE(pair.transfer.is_corrupt[0]);
  }
}

TEST_CASE("what is mapped for reading is read, and a grant of it refused instead of written to") {
  Pair pair(true, PoolAccess::kRead);
  CHECK(pair.link->receive(pair.transfer).ok());
  CHECK(std::ranges::equal(pair.target, pair.pool.subspan(4096, kBlock)));
  const auto filled = pair.link->fill(pair.transfer);
  REQUIRE_FALSE(filled.ok());
  CHECK(filled.code() == Code::kProtocol);
}

TEST_CASE("a flipped byte is seen by who verifies, and only by him") {
  for (const bool verifies : {true, false}) {
    CAPTURE(verifies);
    Pair pair(verifies);
    pair.pool[4096 + 77'777] ^= std::byte{1};
    REQUIRE(pair.link->receive(pair.transfer).ok());
    CHECK(pair.transfer.is_corrupt[0] == verifies);
  }
}

TEST_CASE(
    "bytes copied from the pool of a server that has closed are no answer, even if they fit") {
  for (const bool verifies : {true, false}) {
    CAPTURE(verifies);
    Pair pair(verifies);
    pair.server.reset();  // its pins are gone, and the pages may be another's
    const auto moved = pair.link->receive(pair.transfer);
    REQUIRE_FALSE(moved.ok());
    CHECK(moved.code() == Code::kDisconnected);
  }
}

TEST_CASE("a server that only says its end still keeps what it named") {
  Pair pair(true);
  ::shutdown(pair.server.get(), SHUT_WR);
  CHECK(pair.link->receive(pair.transfer).ok());
}

}  // namespace infinistore
