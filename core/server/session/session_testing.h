#pragma once
// A worker over any transport, and a client written by hand, for the tests of sessions.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fd.h"
#include "core/server/background.h"
#include "core/server/context.h"
#include "core/server/worker.h"
#include "core/transport/loopback/loopback.h"
#include "core/transport/transports.h"
#include "core/wire/codec.h"
#include "core/wire/frame.h"

namespace infinistore::testing {

struct Frame {
  FrameHeader header;
  Body body;
  Body payload;
  std::vector<UniqueFd> fds;
};

// The client's end of a connection.  Blocks for at most some seconds; `nullopt`: the server closed.
class Peer {
 public:
  Peer(UniqueFd socket, std::string_view transport, Pool& pool);

  bool shares_memory() const noexcept { return shares_memory_; }
  int fd() const noexcept { return socket_.get(); }
  void hang_up() { socket_.reset(); }

  void send_bytes(Bytes bytes);
  std::uint64_t send(Opcode opcode, const Body& body, Bytes payload = {}, std::uint16_t flags = 0);
  void send_as(std::uint64_t request_id, Opcode opcode, const Body& body, Bytes payload = {},
               std::uint16_t flags = 0);
  std::optional<Frame> receive();
  Frame call(Opcode opcode, const Body& body, std::uint16_t flags = 0);

  Frame hello(std::string_view space = "", std::string_view token = "", Nonce nonce = {},
              std::uint16_t flags = 0);

  // PUT up to GRANT: of one range each, whole values unless `ranges` says otherwise.
  struct Put {
    std::uint64_t request_id = 0;
    GrantReply grant;
    std::vector<std::string> granted;  // the bytes of each granted item
    std::vector<std::uint64_t> offsets;
  };
  struct Item {
    std::string key;
    std::string bytes;
    std::uint64_t value_bytes = 0;  // 0: the bytes are the whole value
    std::uint64_t offset = 0;
  };
  Put begin_put(const std::vector<Item>& items, OnExists on_exists = OnExists::kKeep);
  void send_fill(const Put& put);
  void send_cancel(const Put& put);
  std::vector<Code> result();  // of RESULT, which must be next
  std::vector<Code> put(const std::vector<Item>& items, OnExists on_exists = OnExists::kKeep);

  struct Got {
    std::vector<Code> outcomes;
    std::vector<std::string> found;
  };
  Got get(const GetRequest& request, std::uint16_t flags = 0, bool is_done = true);
  Got read_data(bool is_done = true);  // of DATA, which must be next
  std::vector<Code> codes(Opcode opcode, const std::vector<std::string_view>& keys);

 private:
  Body read(std::uint64_t bytes, std::vector<UniqueFd>* fds, bool& is_end);
  void write_extents(const Extents& extents, std::string_view bytes);
  std::string read_extents(const Extents& extents);

  UniqueFd socket_;
  bool shares_memory_;
  Pool& pool_;  // in shared memory's place: the tests run in the server's process
  std::uint64_t last_id_ = 0;
};

struct HarnessOptions {
  std::uint64_t pool_bytes = 8u << 20;
  std::string token = {};
  std::string read_token = {};
  std::vector<Tenant> tenants = {};
  double stage_timeout_s = 30;
  bool without_fencing = false;
  double lease_max_s = 300;
  Loopback::Options faults = {};  // of loopback connections
};

// One worker with everything behind it; checks at its end that nothing is left of any session.
class Harness {
 public:
  explicit Harness(std::string_view transport, HarnessOptions options = {});
  ~Harness();
  Harness(const Harness&) = delete;
  Harness& operator=(const Harness&) = delete;

  Peer connect(bool greets = true, std::string_view space = "");
  // Two ends of a connection of this transport; the first is the client's.
  std::pair<UniqueFd, UniqueFd> make_connection();
  void serve(UniqueFd server_end);

  Store& store() noexcept { return store_; }
  LeaseTable& leases() noexcept { return leases_; }
  WaitTable& waits() noexcept { return waits_; }
  Worker& worker() noexcept { return *worker_; }
  ServerContext& context() noexcept { return context_; }
  const Identity& identity() const noexcept { return identity_; }

  // Waits for `condition`; false after some seconds.
  template <class Condition>
  bool eventually(Condition condition) {
    for (int i = 0; i < 5000; ++i) {
      if (condition()) return true;
      sleep_ms(1);
    }
    return false;
  }
  bool sessions_are(std::uint64_t count) {
    return eventually([&] { return worker_->metrics().sessions.load() == count; });
  }
  static void sleep_ms(int ms);

 private:
  const Transport& transport_;
  HarnessOptions given_;
  ServerOptions options_;
  Identity identity_ = make_identity();
  MonotonicClock clock_;
  Log log_{LogLevel::kError};
  WaitTable waits_;
  Store store_;
  Heat heat_;
  LeaseTable leases_;
  ServerContext context_;
  Background background_;
  std::unique_ptr<Worker> worker_;
  std::vector<std::unique_ptr<Loopback>> loopbacks_;
  SessionId last_session_ = 0;
};

// Runs `body(name)` for every transport of the table.
template <class TestBody>
void for_each_transport(TestBody body);

}  // namespace infinistore::testing

#include <doctest/doctest.h>

namespace infinistore::testing {

template <class TestBody>
void for_each_transport(TestBody body) {
  for (const auto& transport : transports()) {
    CAPTURE(transport.name);
    body(transport.name);
  }
}

}  // namespace infinistore::testing
