#pragma once
// Names: the addresses of a host, found within a deadline.
//
// The system's lookup knows no deadline: of a name service that is silent it waits for tens of
// seconds.  So a lookup runs on a thread of its own, one for a name at a time.  Who asked waits as
// long as he wants, and has the addresses of last time if the service is late or has none now: a
// server whose name cannot be looked up is mostly where it was.
//
// Thread-safe.

#include <sys/socket.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/transport/tcp/client_dial.h"

namespace infinistore {

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};
using SocketAddresses = std::vector<SocketAddress>;

class Names {
 public:
  using Lookup = std::function<Result<SocketAddresses>(const std::string&, std::uint16_t)>;

  explicit Names(Lookup lookup) : lookup_(std::move(lookup)) {}
  ~Names();  // waits for the lookups that run

  // Numeric addresses of IPv4 and IPv6 are read, not looked up.
  Result<SocketAddresses> find(const std::string& host, std::uint16_t port,
                               DialDeadline deadline) NO_THREAD_SAFETY_ANALYSIS;

 private:
  // As many as servers were named to this process.
  struct Name {
    std::thread lookup;
    bool is_running = false;
    std::uint64_t ended = 0;  // lookups
    Error failure{Code::kOk, {}};
    SocketAddresses addresses;  // of the last lookup that found some
  };
  using Key = std::pair<std::string, std::uint16_t>;

  void start_locked(const Key& key, Name& name) REQUIRES(mutex_);

  const Lookup lookup_;
  Mutex mutex_;
  std::condition_variable ended_;
  std::map<Key, Name> names_ GUARDED_BY(mutex_);
};

// By the system's lookup; for every client of the process, and anew in a child of it.
Names& process_names();

}  // namespace infinistore
