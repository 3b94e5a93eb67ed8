#pragma once
// Dialling a server: connection, hello, and the choice of the transport.

#include <memory>
#include <optional>
#include <string>

#include "core/base/fd.h"
#include "core/base/result.h"
#include "core/client/options.h"
#include "core/transport/rdma/client_node.h"
#include "core/transport/shm/client_pool.h"
#include "core/transport/tls/tls.h"
#include "core/wire/message.h"

namespace infinistore {

// Who we are, to the server: one for a client object.
struct ClientIdentity {
  std::uint64_t incarnation = 0;
  BootId boot_id{};
};

ClientIdentity make_client_identity();

struct ServerInfo {
  std::uint64_t incarnation = 0;
  std::uint64_t pool_bytes = 0;
  std::string version;
  bool shares_memory = false;
  bool uses_rdma = false;
  bool reads_only = false;  // by our setting, or by the token
  // Why shared memory, or RDMA, is not used; empty: it is, or was not asked for.
  std::string no_sharing_reason;
  std::string no_rdma_reason;
};

struct Dialled {
  UniqueFd socket;
  ServerInfo server;
  std::optional<ClientPool> pool;  // with shared memory
  std::optional<QueuePair> pair;   // with RDMA
  std::unique_ptr<Tls> tls;        // over TCP, if asked for
};

// Waits, at most connect_timeout for each of the two connections it may need.
Result<Dialled> dial(const ClientOptions& options, const ClientIdentity& identity,
                     TransportChoice choice, RdmaClient& rdma);

}  // namespace infinistore
