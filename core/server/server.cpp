#include "core/server/server.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "core/server/background.h"
#include "core/server/context.h"
#include "core/server/snapshot.h"
#include "core/server/worker.h"
#include "core/store/eviction/policies.h"
#include "core/transport/rdma/server_node.h"
#include "core/transport/shm/listen.h"
#include "core/transport/stream_connection.h"
#include "core/transport/tcp/listen.h"
#include "core/transport/tls/server_tls.h"

namespace infinistore {
namespace {

constexpr std::uint32_t kShardCount = 32;  // a few for each worker: they seldom meet in one

Result<PoolOptions> pool_options(const ServerOptions& options) {
  PoolOptions pool;
  pool.bytes = options.pool_bytes;
  if (options.huge_pages == "on") {
    pool.huge_pages = HugePages::kOn;
  } else if (options.huge_pages == "off") {
    pool.huge_pages = HugePages::kOff;
  } else if (options.huge_pages != "auto") {
    return Error{Code::kSetup, "huge_pages is '" + options.huge_pages + "'; give auto, on or off"};
  }
  return pool;
}

Nanos seconds(double count) { return static_cast<Nanos>(count * static_cast<double>(kSecond)); }

Error check(const ServerOptions& options) {
  const auto policies = eviction_policy_names();
  if (std::find(policies.begin(), policies.end(), options.eviction) == policies.end()) {
    std::string known;
    for (const auto name : policies) known += (known.empty() ? "" : ", ") + std::string(name);
    return {Code::kSetup,
            "there is no eviction policy '" + options.eviction + "'; known: " + known};
  }
  if (options.rdma != "auto" && options.rdma != "on" && options.rdma != "off") {
    return {Code::kSetup, "rdma is '" + options.rdma + "'; give auto, on or off"};
  }
  if (options.workers == 0) return {Code::kSetup, "workers is 0; give at least 1"};
  return {Code::kOk, {}};
}

std::vector<QuotaOptions> quotas(const ServerOptions& options) {
  std::vector<QuotaOptions> all;
  all.reserve(options.tenants.size());
  for (const auto& tenant : options.tenants) all.push_back({tenant.name, tenant.quota_bytes});
  return all;
}

StoreOptions store_options(const ServerOptions& options, std::uint64_t seed) {
  const auto capacity = static_cast<double>(options.pool_bytes);
  return {.shard_count = kShardCount,
          .eviction_policy = options.eviction,
          .staged_bytes_max = std::max<std::uint64_t>(
              static_cast<std::uint64_t>(capacity * options.stage_share), 1),
          .hash_seed = seed,
          .quotas = quotas(options)};
}

}  // namespace

// All that a started server is made of.
class Server::Running {
 public:
  Running(const ServerOptions& options, Pool pool);
  ~Running() { stop(0); }

  Error open_rdma();
  Error open_tls();
  Error reload_tls() { return tls_ ? tls_->reload() : Error{Code::kOk, {}}; }
  Result<Started> listen();
  void serve();
  void stop(Nanos drain);

  std::vector<Counter> snapshot() const;
  Store& store() noexcept { return store_; }
  const Heat& heat() const noexcept { return heat_; }
  Moving& moving() noexcept { return moving_; }
  const Log& log() const noexcept { return log_; }
  std::vector<NamespaceId> spaces(std::optional<std::string_view> name, bool below) const;

 private:
  void accept(const Transport& transport, UniqueFd socket);
  void refuse(int socket, const char* why);
  void tell_waiters(NamespaceId space, std::string_view key);
  bool is_busy() const;

  const ServerOptions& options_;
  const Identity identity_ = make_identity();
  MonotonicClock clock_;
  Log log_{level_of(options_.log_level), 2,
           options_.log_format == "json" ? LogFormat::kJson : LogFormat::kText};
  WaitTable waits_;
  Store store_;
  Heat heat_;
  Moving moving_{store_};
  std::unique_ptr<RdmaServer> rdma_;  // of the store's pool; nullptr: none
  std::string rdma_state_;            // what it is, or why there is none
  std::unique_ptr<ServerTls> tls_;    // nullptr: none
  LeaseTable leases_;
  ServerContext context_;
  Background background_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<const WorkerMetrics*> metrics_;
  std::uint64_t accepted_ = 0;  // the accepting worker's
  std::atomic<Nanos> last_refusal_line_{0};
  std::string unix_path_;  // bound by us
  Mutex stop_mutex_;
  bool is_stopped_ GUARDED_BY(stop_mutex_) = false;
};

Server::Running::Running(const ServerOptions& options, Pool pool)
    : options_(options),
      store_(std::move(pool), store_options(options, identity_.secret), clock_,
             [this](NamespaceId space, std::string_view key) { tell_waiters(space, key); }),
      heat_(store_, clock_, seconds(options.heat_half_life_s)),
      leases_(~identity_.secret),
      context_{.options = options,
               .identity = identity_,
               .clock = clock_,
               .log = log_,
               .store = store_,
               .heat = heat_,
               .leases = leases_,
               .waits = waits_,
               .counters = [this] { return snapshot(); },
               .on_lease_deadline = [this](Nanos at) { background_.note_deadline(at); }},
      background_(store_, leases_, clock_) {
  for (std::uint32_t index = 0; index < options.workers; ++index) {
    workers_.push_back(std::make_unique<Worker>(index, context_));
    metrics_.push_back(&workers_.back()->metrics());
  }
}

// An error: there is no RDMA, and there must be.
Error Server::Running::open_rdma() {
  if (options_.rdma == "off") {
    rdma_state_ = "off: it is set so";
    return {Code::kOk, {}};
  }
  auto opened = RdmaServer::open(options_.rdma_device, store_.pool());
  if (!opened && options_.rdma == "on") return opened.error();
  if (!opened) {
    rdma_state_ = "off: " + opened.error().message;
    return {Code::kOk, {}};
  }
  rdma_ = std::move(*opened);
  rdma_state_ = rdma_->describe();
  context_.rdma = rdma_.get();
  background_.then([this] {
    const auto covered = rdma_->cover_some();
    if (!covered) {
      log_.write(LogLevel::kWarning,
                 "the pool is not wholly registered: " + covered.error().message);
    }
    return covered && covered.value();
  });
  return {Code::kOk, {}};
}

Error Server::Running::open_tls() {
  if (options_.tls_cert_file.empty()) return {Code::kOk, {}};
  auto opened = ServerTls::open(options_.tls_cert_file, options_.tls_key_file);
  if (!opened) return opened.error();
  tls_ = std::move(*opened);
  context_.tls = tls_.get();
  return {Code::kOk, {}};
}

Result<Server::Started> Server::Running::listen() {
  auto tcp = listen_tcp(options_.host, options_.port);
  if (!tcp) return tcp.error();
  auto& first = *workers_.front();
  const auto take = [this](const Transport& transport, UniqueFd socket) {
    accept(transport, std::move(socket));
  };
  const auto shed = [this](int socket) {
    refuse(socket, "the server has no descriptor to spare; raise its ulimit -n");
  };
  const auto add = [&](UniqueFd socket, std::string_view transport) {
    first.listen(std::make_unique<Acceptor>(std::move(socket), transport_named(transport),
                                            first.poller(), take, shed));
  };
  const auto port = tcp->port;
  add(std::move(tcp->socket), rdma_ ? "rdma" : "tcp");
  if (!options_.unix_socket.empty()) {
    auto local = listen_unix(options_.unix_socket);
    if (!local) return local.error();
    unix_path_ = options_.unix_socket;
    add(std::move(*local), "shm");
  }
  return Started{.port = port,
                 .unix_socket = unix_path_,
                 .incarnation = identity_.incarnation,
                 .pool_bytes = store_.pool().capacity_bytes(),
                 .rdma = rdma_state_};
}

void Server::Running::serve() {
  for (const auto& worker : workers_) worker->start();
  background_.start();
}

void Server::Running::accept(const Transport& transport, UniqueFd socket) {
  std::uint64_t sessions = 0;
  for (const auto* metrics : metrics_) sessions += metrics->sessions.load();
  if (sessions >= std::min<std::uint64_t>(options_.sessions_max, kSessionsMax)) {
    refuse(socket.get(), "the server has as many connections as it may; raise --sessions-max");
    return;
  }
  // In turn, so that the channels of one client are served by different workers.
  const SessionId id = ++accepted_;
  workers_[id % workers_.size()]->adopt(transport, std::move(socket), id);
}

void Server::Running::refuse(int socket, const char* why) {
  turn_away(socket, {Code::kOverloaded, why});
  workers_.front()->metrics().sessions_refused.add();  // on whose thread this is
  log_.write_limited(LogLevel::kWarning, std::string("refused a connection: ") + why, clock_,
                     last_refusal_line_);
}

// A key that was being written was sealed or given up.  On the thread that did it.
void Server::Running::tell_waiters(NamespaceId space, std::string_view key) {
  for (const auto& waiter : waits_.take(space, key)) workers_[waiter.worker_index]->tell(waiter);
}

bool Server::Running::is_busy() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker->is_busy(); });
}

void Server::Running::stop(Nanos drain) {
  const MutexLock lock(stop_mutex_);
  if (std::exchange(is_stopped_, true)) return;
  context_.is_draining = true;
  const Nanos deadline = clock_.now() + drain;
  for (const auto& worker : workers_) {
    worker->stop_listening();
    worker->drain();
  }
  while (clock_.now() < deadline && is_busy()) {
    // Nothing tells this thread; some ms are nothing beside a stop.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (const auto& worker : workers_) worker->stop();
  background_.stop();
  if (!unix_path_.empty()) ::unlink(unix_path_.c_str());
}

std::vector<Counter> Server::Running::snapshot() const {
  auto all = make_snapshot(store_.counters(), leases_, waits_.count(), metrics_);
  all.push_back({"served_bytes_per_s", static_cast<std::uint64_t>(heat_.total_rate())});
  return all;
}

// The numbers of a namespace that there is, of those whose names begin so, or of all.
std::vector<NamespaceId> Server::Running::spaces(std::optional<std::string_view> name,
                                                 bool below) const {
  std::vector<NamespaceId> found;
  const auto last = static_cast<NamespaceId>(store_.counters().namespaces);
  for (NamespaceId id = 0; id <= last; ++id) {
    const auto space = store_.space_name(id);
    if (space.empty() && id > 0) continue;  // beyond the last
    if (!name || *name == space || (below && space.starts_with(*name))) found.push_back(id);
  }
  return found;
}

Server::Server(ServerOptions options) : options_(std::move(options)) {}
Server::~Server() = default;

Result<Server::Started> Server::start() {
  const MutexLock lock(mutex_);
  if (running_) return Error{Code::kSetup, "a server starts only once; make a new one"};
  if (auto wrong = check(options_); wrong.code != Code::kOk) return wrong;
  auto wanted = pool_options(options_);
  if (!wanted) return wanted.error();
  auto pool = Pool::create(*wanted);
  if (!pool) return pool.error();
  try {
    auto running = std::make_unique<Running>(options_, std::move(pool).value());
    if (auto error = running->open_rdma(); error.code != Code::kOk) return error;
    if (auto error = running->open_tls(); error.code != Code::kOk) return error;
    auto started = running->listen();
    if (!started) return started;
    running->serve();
    running_ = std::move(running);
    return started;
  } catch (const std::system_error& error) {
    return Error{Code::kSetup, std::string("cannot start: ") + error.what()};
  }
}

Server::Running* Server::running() const {
  const MutexLock lock(mutex_);
  return running_.get();
}

void Server::stop(Nanos drain) {
  if (auto* it = running()) it->stop(drain);
}

std::vector<Counter> Server::snapshot() const {
  const auto* it = running();
  return it ? it->snapshot() : std::vector<Counter>{};
}

std::uint64_t Server::evict(std::uint64_t bytes) {
  auto* it = running();
  return it ? it->store().evict(bytes) : 0;
}

std::size_t Server::purge(std::optional<std::string_view> space, bool below) {
  std::size_t count = 0;
  if (auto* it = running()) {
    for (const auto id : it->spaces(space, below)) count += it->store().purge(id);
  }
  return count;
}

std::size_t Server::key_count(std::optional<std::string_view> space, bool below) const {
  auto* it = running();
  if (!it) return 0;
  if (!space) return it->store().key_count(std::nullopt);
  std::size_t count = 0;
  for (const auto id : it->spaces(space, below)) count += it->store().key_count(id);
  return count;
}

QuotaUse Server::tenant_use(std::string_view tenant) const {
  auto* it = running();
  return it ? it->store().quota_use(tenant) : QuotaUse{};
}

std::string Server::check_integrity() const {
  auto* it = running();
  return it ? it->store().check_integrity() : std::string();
}

std::vector<KeyAnswer> Server::explain(std::string_view space,
                                       std::span<const std::string_view> keys) const {
  auto* it = running();
  return it ? it->store().explain(space, keys) : std::vector<KeyAnswer>{};
}

std::vector<SpaceView> Server::spaces() const {
  auto* it = running();
  return it ? it->store().spaces() : std::vector<SpaceView>{};
}

HitCurve::Picture Server::hit_curve(std::span<const std::uint64_t> pool_bytes) const {
  auto* it = running();
  return it ? it->store().hit_curve(pool_bytes) : HitCurve::Picture{};
}

Error Server::reload_tls() {
  auto* it = running();
  return it ? it->reload_tls() : Error{Code::kOk, {}};
}

std::vector<LogLine> Server::recent_log() const {
  auto* it = running();
  return it ? it->log().recent() : std::vector<LogLine>{};
}

std::unique_ptr<Scrub> Server::make_scrub() {
  auto* it = running();
  return it ? std::make_unique<Scrub>(it->store()) : nullptr;
}

std::vector<Heat::Key> Server::hottest(std::size_t count_max) const {
  const auto* it = running();
  return it ? it->heat().hottest(count_max) : std::vector<Heat::Key>{};
}

Heat::Page Server::list_keys(std::uint64_t cursor, std::size_t count_max) const {
  const auto* it = running();
  return it ? it->heat().list_keys(cursor, count_max) : Heat::Page{};
}

std::uint64_t Server::begin_move(std::string_view space, std::span<const std::string_view> keys) {
  auto* it = running();
  return it ? it->moving().begin(space, keys) : 0;
}

std::vector<bool> Server::end_move(std::uint64_t id) {
  auto* it = running();
  return it ? it->moving().end(id) : std::vector<bool>{};
}

std::vector<StagedView> Server::staged(std::size_t count_max) const {
  auto* it = running();
  return it ? it->store().staged(count_max) : std::vector<StagedView>{};
}

}  // namespace infinistore
