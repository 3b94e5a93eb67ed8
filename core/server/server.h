#pragma once
// Server: listeners, workers, one store, and the thread behind them.
//
//   Server server(options);  server.start();  ... snapshot(), evict(), purge() ...
//   server.stop(drain)
//
// Thread-safe.  After stop() it answers about what it holds, but serves nobody; it starts once.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/server/options.h"
#include "core/store/heat/heat.h"
#include "core/store/heat/moving.h"
#include "core/store/scrub/scrub.h"
#include "core/store/store.h"
#include "core/wire/message.h"

namespace infinistore {

class Server {
 public:
  explicit Server(ServerOptions options);
  ~Server();

  struct Started {
    std::uint16_t port = 0;
    std::string unix_socket;
    std::uint64_t incarnation = 0;
    std::uint64_t pool_bytes = 0;
    std::string rdma;  // the device, or why there is none
  };
  // Serves when it returns; memory is populated behind.  kSetup says what is wrong and the remedy.
  Result<Started> start();
  // Accepts nobody more, lets requests that have begun end for at most `drain`, then ends the rest.
  void stop(Nanos drain);

  // These are empty or 0 before start().
  std::vector<Counter> snapshot() const;
  std::uint64_t evict(std::uint64_t bytes);
  // Of one namespace; `below`: of all whose names begin so; nullopt: of all.
  std::size_t purge(std::optional<std::string_view> space, bool below = false);
  std::size_t key_count(std::optional<std::string_view> space, bool below = false) const;
  QuotaUse tenant_use(std::string_view tenant) const;
  std::vector<StagedView> staged(std::size_t count_max) const;
  // What it serves most, and a walk over all keys: see Heat.
  std::vector<Heat::Key> hottest(std::size_t count_max) const;
  Heat::Page list_keys(std::uint64_t cursor, std::size_t count_max) const;
  // Whether values are what they were, once their copies have come to another node: see Moving.
  std::uint64_t begin_move(std::string_view space, std::span<const std::string_view> keys);
  std::vector<bool> end_move(std::uint64_t id);
  // Why keys are or are not there; what lives in each namespace; hit rates by pool size.
  std::vector<KeyAnswer> explain(std::string_view space,
                                 std::span<const std::string_view> keys) const;
  std::vector<SpaceView> spaces() const;
  HitCurve::Picture hit_curve(std::span<const std::uint64_t> pool_bytes) const;
  // Reads the certificate again, for connections to come; not kOk: why the old one stays.
  Error reload_tls();
  std::vector<LogLine> recent_log() const;  // the newest warnings and errors, oldest first
  // What is wrong with the books, empty if nothing; everybody waits meanwhile.
  std::string check_integrity() const;
  // A new walk over all values, in steps of the caller's; null before start().  It must end before
  // the server does.
  std::unique_ptr<Scrub> make_scrub();

 private:
  class Running;
  Running* running() const;

  const ServerOptions options_;
  mutable Mutex mutex_;
  std::unique_ptr<Running> running_ GUARDED_BY(mutex_);
};

}  // namespace infinistore
