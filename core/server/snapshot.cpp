#include "core/server/snapshot.h"

#include <array>
#include <string>

namespace infinistore {
namespace {

struct RequestName {
  Opcode opcode;
  const char* name;
};
constexpr std::array<RequestName, 11> kRequests = {{
    {Opcode::kHello, "requests_hello"},
    {Opcode::kPut, "requests_put"},
    {Opcode::kGet, "requests_get"},
    {Opcode::kMatch, "requests_match"},
    {Opcode::kExists, "requests_exists"},
    {Opcode::kErase, "requests_erase"},
    {Opcode::kLease, "requests_lease"},
    {Opcode::kAbort, "requests_abort"},
    {Opcode::kStats, "requests_stats"},
    {Opcode::kPing, "requests_ping"},
    {Opcode::kSuspect, "requests_suspect"},
}};

// Microseconds, by four: 16 us to 17 s.
constexpr std::array<std::size_t, 11> kBucketExponents = {4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24};

class Counters {
 public:
  void add(std::string name, std::uint64_t value) { all_.push_back({std::move(name), value}); }
  template <class Get>
  void add_sum(std::string name, std::span<const WorkerMetrics* const> workers, Get get) {
    std::uint64_t sum = 0;
    for (const auto* worker : workers) sum += get(*worker);
    add(std::move(name), sum);
  }
  template <class Get>
  void add_histogram(const std::string& name, std::span<const WorkerMetrics* const> workers,
                     Get get) {
    Log2Histogram::Picture all;
    for (const auto* worker : workers) all.add(get(*worker).picture());
    add(name + "_count", all.count());
    add(name + "_sum", all.sum);
    add(name + "_p50", all.quantile(0.5));
    add(name + "_p99", all.quantile(0.99));
    for (const auto exponent : kBucketExponents) {
      add(name + "_below_" + std::to_string(std::uint64_t{1} << exponent),
          all.count_below(exponent));
    }
  }
  std::vector<Counter> take() { return std::move(all_); }

 private:
  std::vector<Counter> all_;
};

void add_store(Counters& all, const StoreCounters& store) {
  all.add("capacity_bytes", store.capacity_bytes);
  all.add("free_bytes", store.free_bytes);
  all.add("reserved_bytes", store.reserved_bytes);
  all.add("quarantined_bytes", store.quarantined_bytes);
  all.add("sealed_bytes", store.sealed_bytes);
  all.add("populated_bytes", store.populated_bytes);
  all.add("unaccounted_bytes", store.unaccounted_bytes());
  all.add("keys", store.keys);
  all.add("namespaces", store.namespaces);
  all.add("staged_values", store.staged_values);
  all.add("pins", store.pins);
  all.add("hits", store.hits);
  all.add("misses", store.misses);
  all.add("misses_new", store.misses_new);
  all.add("misses_evicted", store.misses_evicted);
  all.add("misses_erased", store.misses_erased);
  all.add("seals", store.seals);
  all.add("exists", store.exists);
  all.add("evictions", store.evictions);
  all.add("evicted_bytes", store.evicted_bytes);
  all.add("erased", store.erased);
  all.add("aborted", store.aborted);
  all.add("refused", store.refused);
  all.add("corrupt", store.corrupt);
}

}  // namespace

std::vector<Counter> make_snapshot(const StoreCounters& store, const LeaseTable& leases,
                                   std::size_t waiting_keys,
                                   std::span<const WorkerMetrics* const> workers) {
  using M = WorkerMetrics;
  Counters all;
  add_store(all, store);
  all.add("leases", leases.count());
  all.add("leased_keys", leases.key_count());
  all.add("waiting_keys", waiting_keys);
  all.add("workers", workers.size());
  all.add_sum("sessions", workers, [](const M& m) { return m.sessions.load(); });
  all.add_sum("open_requests", workers, [](const M& m) { return m.open_requests.load(); });
  all.add_sum("sessions_begun", workers, [](const M& m) { return m.sessions_begun.get(); });
  all.add_sum("sessions_refused", workers, [](const M& m) { return m.sessions_refused.get(); });
  all.add_sum("sessions_unauthorized", workers,
              [](const M& m) { return m.sessions_unauthorized.get(); });
  all.add_sum("sessions_stalled", workers, [](const M& m) { return m.stalled_sessions.get(); });
  all.add_sum("sessions_unfenced", workers, [](const M& m) { return m.unfenced_ends.get(); });
  all.add_sum("received_bytes", workers, [](const M& m) { return m.received_bytes.get(); });
  all.add_sum("sent_bytes", workers, [](const M& m) { return m.sent_bytes.get(); });
  all.add_sum("late_messages", workers, [](const M& m) { return m.late_messages.get(); });
  all.add_sum("protocol_errors", workers, [](const M& m) { return m.protocol_errors.get(); });
  all.add_sum("false_alarms", workers, [](const M& m) { return m.false_alarms.get(); });
  all.add_sum("overloads", workers, [](const M& m) { return m.overloads.get(); });
  for (const auto& [opcode, name] : kRequests) {
    all.add_sum(name, workers, [opcode = opcode](const M& m) {
      return m.requests[static_cast<std::size_t>(opcode)].get();
    });
  }
  all.add_histogram("put_us", workers, [](const M& m) -> const auto& { return m.put_us; });
  all.add_histogram("get_us", workers, [](const M& m) -> const auto& { return m.get_us; });
  return all.take();
}

}  // namespace infinistore
