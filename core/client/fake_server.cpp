#include "core/client/fake_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstring>

#include "core/base/check.h"
#include "core/transport/boot_id.h"

namespace infinistore {
namespace {

template <class Address>
void listen_at(int fd, const Address& address, socklen_t size) {
  KV_CHECK(::bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0);
  KV_CHECK(::listen(fd, 16) == 0);
}

}  // namespace

bool FakePeer::read(MutableBytes into) {
  while (!into.empty()) {
    const auto got = ::recv(socket_, into.data(), into.size(), 0);
    if (got <= 0) return false;
    into = into.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

std::optional<FakeFrame> FakePeer::next() {
  std::array<std::byte, kHeaderBytes> raw{};
  if (!read(raw)) return std::nullopt;
  const auto header = decode_header(raw);
  KV_CHECK(header.has_value());
  FakeFrame frame{*header, Body(header->body_bytes), Body(header->payload_bytes)};
  if (!read(frame.body) || !read(frame.payload)) return std::nullopt;
  return frame;
}

void FakePeer::send_raw(Bytes bytes) {
  while (!bytes.empty()) {
    const auto put = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put <= 0) return;  // the client has closed: next() says so
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

void FakePeer::send(Opcode opcode, std::uint64_t request_id, const Body& body, const Body& payload,
                    std::uint16_t flags) {
  const auto header = encode_header({.opcode = opcode,
                                     .flags = flags,
                                     .request_id = request_id,
                                     .body_bytes = static_cast<std::uint32_t>(body.size()),
                                     .payload_bytes = payload.size()},
                                    body);
  Body all(header.begin(), header.end());
  all.insert(all.end(), body.begin(), body.end());
  all.insert(all.end(), payload.begin(), payload.end());
  send_raw(all);
}

void FakePeer::answer_all(const std::function<bool()>& goes_on) {
  while (const auto frame = next()) {
    if (!goes_on()) return;
    send(Opcode::kResult, frame->header.request_id, encode(ResultReply{}));
  }
}

void FakePeer::send_fds(Opcode opcode, std::uint64_t request_id, const Body& body,
                        const std::vector<int>& fds) {
  const auto header = encode_header({.opcode = opcode,
                                     .flags = 0,
                                     .request_id = request_id,
                                     .body_bytes = static_cast<std::uint32_t>(body.size()),
                                     .payload_bytes = 0},
                                    body);
  Body all(header.begin(), header.end());
  all.insert(all.end(), body.begin(), body.end());
  iovec piece{all.data(), all.size()};
  alignas(cmsghdr) std::array<std::byte, 256> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  auto* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(part), fds.data(), fds.size() * sizeof(int));
  KV_CHECK(::sendmsg(socket_, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(all.size()));
}

FakeServer::FakeServer(Script script, std::size_t pool_bytes, bool is_sealed, bool greets)
    : script_(std::move(script)),
      greets_(greets),
      tcp_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  listen_at(tcp_.get(), address, sizeof address);
  socklen_t size = sizeof address;
  KV_CHECK(::getsockname(tcp_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  if (pool_bytes > 0) {
    memory_ = UniqueFd(::memfd_create("fake-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    KV_CHECK(::ftruncate(memory_.get(), static_cast<off_t>(pool_bytes)) == 0);
    if (is_sealed) ::fcntl(memory_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    void* const base =
        ::mmap(nullptr, pool_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
    KV_CHECK(base != MAP_FAILED);
    pool_ = {static_cast<std::byte*>(base), pool_bytes};
    unix_path_ =
        "/tmp/infinistore-fake-" + std::to_string(::getpid()) + "-" + std::to_string(port_);
    sockaddr_un path{};
    path.sun_family = AF_UNIX;
    std::memcpy(path.sun_path, unix_path_.data(), unix_path_.size());
    unix_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    listen_at(unix_.get(), path, sizeof path);
    threads_.emplace_back([this] { accept_from(unix_.get(), true); });
  }
  const MutexLock lock(mutex_);
  threads_.emplace_back([this] { accept_from(tcp_.get(), false); });
}

FakeServer::~FakeServer() {
  ::shutdown(tcp_.get(), SHUT_RDWR);
  if (unix_) ::shutdown(unix_.get(), SHUT_RDWR);
  close_connections();
  // Threads that accept() begins are behind it in the list: an index, not an iterator.
  for (std::size_t i = 0;; ++i) {
    std::thread thread;
    {
      const MutexLock lock(mutex_);
      if (i == threads_.size()) break;
      thread = std::move(threads_[i]);
    }
    thread.join();
    close_connections();
  }
  if (!pool_.empty()) ::munmap(pool_.data(), pool_.size());
  if (!unix_path_.empty()) ::unlink(unix_path_.c_str());
}

void FakeServer::close_connections() {
  const MutexLock lock(mutex_);
  for (const auto& socket : sockets_) ::shutdown(socket.get(), SHUT_RDWR);
}

void FakeServer::accept_from(int listener, bool shares_memory) {
  while (true) {
    UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) return;
    ++connections_;
    const MutexLock lock(mutex_);
    const int fd = socket.get();
    sockets_.push_back(std::move(socket));
    threads_.emplace_back([this, fd, shares_memory] { serve(fd, shares_memory); });
  }
}

void FakeServer::serve(int socket, bool shares_memory) {
  FakePeer peer(socket, shares_memory);
  if (greets_ && !greet(peer)) return;
  script_(peer);
  ::shutdown(socket, SHUT_RDWR);
}

bool FakeServer::greet(FakePeer& peer) {
  const auto hello = peer.next();
  if (!hello) return false;
  Welcome welcome;
  welcome.incarnation = 7;
  welcome.pool_bytes = 64u << 20;
  welcome.server_version = "fake";
  if (!pool_.empty()) {
    welcome.boot_id = read_boot_id();
    welcome.unix_path = unix_path_;
  }
  if (peer.shares_memory()) {
    welcome.capabilities = Welcome::kSharedMemory;
    welcome.region_bytes = {pool_.size()};
    peer.send_fds(Opcode::kWelcome, hello->header.request_id, encode(welcome), {memory_.get()});
  } else {
    peer.send(Opcode::kWelcome, hello->header.request_id, encode(welcome));
  }
  return true;
}

}  // namespace infinistore
