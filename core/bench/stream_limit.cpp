#include "core/bench/stream_limit.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>
#include <vector>

#include "core/bench/address.h"

namespace infinistore {
namespace {

// One system call's share: the best of 256 KiB to 4 MiB on loopback, and below IOV_MAX.
constexpr std::size_t kCallBytes = 1u << 20;
constexpr std::size_t kCallBlocksMax = 256;

// An odd number near the golden ratio of 2^32: its multiples visit a power of two of slots in an
// order that looks random to the hardware.
constexpr std::uint64_t kStride = 2654435761U;

struct Request {
  StreamDirection direction;
  std::uint32_t zero;
  std::uint64_t block_bytes;
  std::uint64_t first;  // index of this socket's first block
  std::uint64_t count;
};
static_assert(sizeof(Request) == 32);

enum class Way { kSend, kReceive };

// Moves what `vectors` name, whole. kDisconnected at the stream's end.
Code move_vectors(int socket, Way way, std::span<iovec> vectors) noexcept {
  while (!vectors.empty()) {
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = vectors.size();
    const ssize_t moved = way == Way::kSend ? ::sendmsg(socket, &message, MSG_NOSIGNAL)
                                            : ::recvmsg(socket, &message, 0);
    if (moved == 0) return Code::kDisconnected;
    if (moved < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN ? Code::kTimeout : Code::kDisconnected;
    }
    auto left = static_cast<std::size_t>(moved);
    while (left != 0 && left >= vectors.front().iov_len) {
      left -= vectors.front().iov_len;
      vectors = vectors.subspan(1);
    }
    if (left != 0) {
      iovec& partly = vectors.front();
      partly.iov_base = static_cast<std::byte*>(partly.iov_base) + left;
      partly.iov_len -= left;
    }
  }
  return Code::kOk;
}

Code move_bytes(int socket, Way way, MutableBytes bytes) noexcept {
  std::array<iovec, 1> vector{iovec{.iov_base = bytes.data(), .iov_len = bytes.size()}};
  return move_vectors(socket, way, vector);
}

// `address_of(i)` is where block i lies, for i in [0, count).
template <class AddressOf>
Code move_all(int socket, Way way, std::uint64_t count, std::size_t block_bytes,
              AddressOf address_of) {
  const std::size_t per_call = std::clamp(kCallBytes / block_bytes, std::size_t{1}, kCallBlocksMax);
  std::vector<iovec> vectors(per_call);
  for (std::uint64_t done = 0; done < count;) {
    const std::size_t now = std::min<std::uint64_t>(per_call, count - done);
    for (std::size_t i = 0; i < now; ++i) {
      vectors[i] = {.iov_base = address_of(done + i), .iov_len = block_bytes};
    }
    const Code code = move_vectors(socket, way, std::span(vectors).first(now));
    if (code != Code::kOk) return code;
    done += now;
  }
  return Code::kOk;
}

// Answers one request; kInvalid if it does not fit the memory.
Code serve_one(int socket, const Request& request, MutableBytes memory) {
  const std::uint64_t slots = request.block_bytes == 0 ? 0 : memory.size() / request.block_bytes;
  if (slots == 0 || request.first > slots || request.count > slots - request.first) {
    return Code::kInvalid;
  }
  const auto address_of = [&](std::uint64_t i) {
    const std::uint64_t slot = (request.first + i) * kStride % slots;
    return memory.data() + slot * request.block_bytes;
  };
  const bool towards = request.direction == StreamDirection::kToFar;
  const Way way = towards ? Way::kReceive : Way::kSend;
  const Code code = move_all(socket, way, request.count, request.block_bytes, address_of);
  if (code != Code::kOk || !towards) return code;
  std::array<std::byte, 1> end{};
  return move_bytes(socket, Way::kSend, end);
}

Code serve_stream(int socket, MutableBytes memory) {
  while (true) {
    Request request{};
    const Code arrived =
        move_bytes(socket, Way::kReceive, std::as_writable_bytes(std::span(&request, 1)));
    if (arrived == Code::kDisconnected) return Code::kOk;
    if (arrived != Code::kOk) return arrived;
    const Code code = serve_one(socket, request, memory);
    if (code != Code::kOk) {
      ::shutdown(socket, SHUT_RDWR);  // or the near end would wait for an answer
      return code;
    }
  }
}

Code move_share(int socket, Request request, std::span<const std::uint64_t> addresses) {
  const Code asked = move_bytes(socket, Way::kSend, std::as_writable_bytes(std::span(&request, 1)));
  if (asked != Code::kOk) return asked;
  const bool towards = request.direction == StreamDirection::kToFar;
  const Code code =
      move_all(socket, towards ? Way::kSend : Way::kReceive, request.count, request.block_bytes,
               [&](std::uint64_t i) { return at_address(addresses[request.first + i]); });
  if (code != Code::kOk || !towards) return code;
  std::array<std::byte, 1> end{};
  return move_bytes(socket, Way::kReceive, end);
}

// Runs `work(i)` for each socket on a thread of its own; the first failure, or kOk.
template <class Work>
Code on_each(std::span<const int> sockets, Work work) {
  std::vector<Code> codes(sockets.size(), Code::kOk);
  std::vector<std::thread> threads;
  threads.reserve(sockets.size());
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    threads.emplace_back([&codes, &work, i] { codes[i] = work(i); });
  }
  for (std::thread& thread : threads) thread.join();
  const auto failed =
      std::find_if(codes.begin(), codes.end(), [](Code c) { return c != Code::kOk; });
  return failed == codes.end() ? Code::kOk : *failed;
}

}  // namespace

Code serve_streams(std::span<const int> sockets, MutableBytes memory) {
  return on_each(sockets, [&](std::size_t i) { return serve_stream(sockets[i], memory); });
}

Code move_blocks(std::span<const int> sockets, StreamDirection direction,
                 std::span<const std::uint64_t> addresses, std::size_t block_bytes) {
  if (sockets.empty() || block_bytes == 0) return Code::kInvalid;
  return on_each(sockets, [&](std::size_t i) {
    const std::uint64_t first = addresses.size() * i / sockets.size();
    const std::uint64_t end = addresses.size() * (i + 1) / sockets.size();
    return move_share(sockets[i],
                      {.direction = direction,
                       .zero = 0,
                       .block_bytes = block_bytes,
                       .first = first,
                       .count = end - first},
                      addresses);
  });
}

}  // namespace infinistore
