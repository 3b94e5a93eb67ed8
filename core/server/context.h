#pragma once
// ServerContext: what all sessions of a server share.  Outlives them.

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/server/options.h"
#include "core/server/wait_table.h"
#include "core/store/heat/heat.h"
#include "core/store/lease_table.h"
#include "core/store/store.h"
#include "core/transport/transports.h"
#include "core/wire/message.h"

namespace infinistore {

// Who this server is, to its clients.
struct Identity {
  std::uint64_t incarnation = 0;  // random, one for a start
  BootId boot_id{};               // this machine's; zeros: unknown
  Nonce nonce{};                  // shows that a unix connection's client came over TCP first
  std::uint64_t secret = 0;  // random and told to nobody: seeds what strangers must not foresee
};

// Random incarnation and nonce; the machine's boot id.
Identity make_identity();

struct ServerContext {
  const ServerOptions& options;
  const Identity& identity;
  const Clock& clock;
  Log& log;
  Store& store;
  Heat& heat;
  LeaseTable& leases;
  WaitTable& waits;
  std::function<std::vector<Counter>()> counters;  // what STATS answers
  std::function<void(Nanos)> on_lease_deadline;    // somebody must call leases.expire() by then
  RdmaServer* rdma = nullptr;                      // nullptr: there is none
  ServerTls* tls = nullptr;                        // nullptr: TCP's connections are as they are
  std::atomic<bool> is_draining{false};            // only what has begun is finished
  std::atomic<Nanos> last_peer_line{0};            // limits the log's lines about bad peers
};

}  // namespace infinistore
