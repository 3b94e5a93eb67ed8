#pragma once
// FakeServer: for tests of the client: answers hello, then does what a script says, right or wrong.
//
// Each connection runs the script on a thread of its own, with plain blocking calls.

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/fd.h"
#include "core/base/mutex.h"
#include "core/wire/codec.h"
#include "core/wire/frame.h"

namespace infinistore {

struct FakeFrame {
  FrameHeader header;
  Body body;
  Body payload;
};

// One connection, after hello if its server greets.
class FakePeer {
 public:
  FakePeer(int socket, bool shares_memory) : socket_(socket), shares_memory_(shares_memory) {}

  bool shares_memory() const noexcept { return shares_memory_; }
  std::optional<FakeFrame> next();  // nullopt: the client has closed
  void send(Opcode opcode, std::uint64_t request_id, const Body& body, const Body& payload = {},
            std::uint16_t flags = 0);
  // RESULT without outcomes, to every request until the client closes or `goes_on` says no.
  void answer_all(const std::function<bool()>& goes_on = [] { return true; });
  void send_raw(Bytes bytes);
  void send_fds(Opcode opcode, std::uint64_t request_id, const Body& body,
                const std::vector<int>& fds);

 private:
  bool read(MutableBytes into);
  int socket_;
  bool shares_memory_;
};

class FakeServer {
 public:
  using Script = std::function<void(FakePeer& peer)>;

  // With `pool_bytes` it offers so much shared memory, in one region, sealed or not.  One that does
  // not greet leaves HELLO to its script.
  explicit FakeServer(Script script, std::size_t pool_bytes = 0, bool is_sealed = true,
                      bool greets = true);
  ~FakeServer();

  std::uint16_t port() const noexcept { return port_; }
  MutableBytes pool() const noexcept { return pool_; }
  int connections() const noexcept { return connections_; }
  void close_connections();

 private:
  void accept_from(int listener, bool shares_memory);
  void serve(int socket, bool shares_memory);
  bool greet(FakePeer& peer);  // false: the client has closed

  Script script_;
  const bool greets_;
  UniqueFd tcp_;
  UniqueFd unix_;
  UniqueFd memory_;
  std::string unix_path_;
  MutableBytes pool_;
  std::uint16_t port_ = 0;
  std::atomic<int> connections_{0};
  Mutex mutex_;
  std::vector<UniqueFd> sockets_;
  std::vector<std::thread> threads_;
};

}  // namespace infinistore
