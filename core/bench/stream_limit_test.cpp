#include "core/bench/stream_limit.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <thread>
#include <vector>

namespace infinistore {
namespace {

std::uint64_t address_of(const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at); }

// Two stream pairs and a far end that serves them until the near ends close.
class FarEnd {
 public:
  explicit FarEnd(std::size_t bytes) : memory_(bytes) {
    for (std::size_t i = 0; i < near_.size(); ++i) {
      std::array<int, 2> pair{};
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) == 0);
      near_[i] = pair[0];
      far_[i] = pair[1];
    }
    thread_ = std::thread([this] {
      code_ = serve_streams(far_, memory_);
      for (const int socket : far_) ::close(socket);  // wakes a near end that still waits
    });
  }
  FarEnd(const FarEnd&) = delete;
  FarEnd& operator=(const FarEnd&) = delete;
  ~FarEnd() { stop(); }

  std::span<const int> near() const { return near_; }
  Code stop() {
    if (!thread_.joinable()) return code_;
    for (const int socket : near_) ::close(socket);
    thread_.join();
    return code_;
  }

 private:
  std::vector<std::byte> memory_;
  std::array<int, 2> near_{};
  std::array<int, 2> far_{};
  Code code_ = Code::kOk;
  std::thread thread_;
};

TEST_CASE("blocks sent to the far end come back as they were, over two streams") {
  constexpr std::size_t kBlock = 4096;
  constexpr std::size_t kCount = 601;  // two uneven shares, several calls each
  FarEnd far(1024 * kBlock);
  std::vector<std::byte> sent(kCount * kBlock);
  std::vector<std::byte> received(kCount * kBlock);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 % 253);
  std::vector<std::uint64_t> from;
  std::vector<std::uint64_t> to;
  for (std::size_t i = 0; i < kCount; ++i) {
    from.push_back(address_of(sent.data() + i * kBlock));
    to.push_back(address_of(received.data() + i * kBlock));
  }
  CHECK(move_blocks(far.near(), StreamDirection::kToFar, from, kBlock) == Code::kOk);
  CHECK(move_blocks(far.near(), StreamDirection::kFromFar, to, kBlock) == Code::kOk);
  CHECK(sent == received);
  CHECK(far.stop() == Code::kOk);
}

TEST_CASE("a request past the far end's memory ends the streams instead of touching more") {
  FarEnd far(4096);
  std::vector<std::byte> block(4096);
  const std::array<std::uint64_t, 2> addresses{address_of(block.data()), address_of(block.data())};
  CHECK(move_blocks(far.near(), StreamDirection::kFromFar, addresses, 4096) != Code::kOk);
  CHECK(far.stop() == Code::kInvalid);
}

}  // namespace
}  // namespace infinistore
