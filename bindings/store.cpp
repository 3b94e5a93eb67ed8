// TestStore: the store alone, for the model test in tests/model.  No product code uses it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>

#include "bindings/init.h"
#include "core/store/scrub/scrub.h"
#include "core/store/store_testing.h"

namespace infinistore {
namespace {

namespace nb = nanobind;

std::string_view view_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

// Reservations, leases and quarantines are numbers here: Python cannot be trusted to drop objects
// in time.
class TestStore {
 public:
  using Number = std::uint64_t;

  TestStore(std::uint64_t pool_bytes, const std::string& policy, std::uint64_t staged_bytes_max,
            std::uint32_t shard_count)
      : store_(testing::pool_of(pool_bytes),
               {.shard_count = shard_count,
                .eviction_policy = policy,
                .staged_bytes_max = staged_bytes_max},
               testing::still_clock()) {}

  std::pair<int, Number> reserve(NamespaceId space, const nb::bytes& key, std::uint64_t value_bytes,
                                 bool replaces) {
    auto made = store_.reserve({.space = space,
                                .key = view_of(key),
                                .value_bytes = value_bytes,
                                .on_exists = replaces ? OnExists::kReplace : OnExists::kKeep});
    if (!made) return {static_cast<int>(made.code()), 0};
    reservations_.emplace(++last_, std::move(*made));
    return {0, last_};
  }
  int claim(Number reservation, std::uint64_t offset, std::uint64_t bytes) {
    return static_cast<int>(
        reservations_.at(reservation).claim({.offset = offset, .bytes = bytes}));
  }
  void unclaim(Number reservation, std::uint64_t offset, std::uint64_t bytes) {
    reservations_.at(reservation).unclaim({.offset = offset, .bytes = bytes});
  }
  void filled(Number reservation, std::uint64_t offset, const nb::bytes& data) {
    Reservation& held = reservations_.at(reservation);
    const Bytes bytes = bytes_of(view_of(data));
    testing::write_at(store_.pool(), held.extents(), offset, bytes);
    held.filled({.offset = offset, .bytes = bytes.size()}, checksum(bytes, offset));
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> filled_ranges(Number reservation) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (const Range range : reservations_.at(reservation).filled_ranges()) {
      ranges.emplace_back(range.offset, range.bytes);
    }
    return ranges;
  }
  bool is_complete(Number reservation) { return reservations_.at(reservation).is_complete(); }
  int seal(Number reservation) {
    auto node = reservations_.extract(reservation);
    return static_cast<int>(std::move(node.mapped()).seal());
  }
  void abort(Number reservation) { reservations_.erase(reservation); }
  Number quarantine(Number reservation) {
    auto node = reservations_.extract(reservation);
    quarantines_.emplace(++last_, std::move(node.mapped()).quarantine());
    return last_;
  }
  void end_quarantine(Number quarantine) { quarantines_.erase(quarantine); }

  Number find(NamespaceId space, const nb::bytes& key) {
    auto lease = store_.find(space, view_of(key));
    return lease ? hold(std::move(*lease)) : 0;
  }
  std::pair<std::size_t, std::vector<Number>> match_prefix(NamespaceId space,
                                                           const std::vector<nb::bytes>& keys,
                                                           std::size_t group) {
    std::vector<std::string_view> views;
    views.reserve(keys.size());
    for (const nb::bytes& key : keys) views.push_back(view_of(key));
    std::vector<Lease> leases;
    const std::size_t blocks = store_.match_prefix(space, views, group, &leases);
    std::vector<Number> numbers;
    numbers.reserve(leases.size());
    for (Lease& lease : leases) numbers.push_back(hold(std::move(lease)));
    return {blocks, numbers};
  }
  nb::bytes read(Number lease, std::uint64_t offset, std::uint64_t bytes) {
    const Range range{.offset = offset, .bytes = bytes};
    const std::string text = testing::read_at(store_.pool(), leases_.at(lease).extents(), range);
    return nb::bytes(text.data(), text.size());
  }
  std::uint64_t value_bytes(Number lease) { return leases_.at(lease).value_bytes(); }
  // (code, sum)
  std::pair<int, std::uint64_t> range_checksum(Number lease, std::uint64_t offset,
                                               std::uint64_t bytes) {
    auto sum = leases_.at(lease).range_checksum({.offset = offset, .bytes = bytes});
    return {static_cast<int>(sum.code()), sum ? *sum : 0};
  }
  // Changes a byte under everybody, as a broken memory would.
  void flip(Number lease, std::uint64_t offset) {
    const std::string old = testing::read_at(store_.pool(), leases_.at(lease).extents(),
                                             {.offset = offset, .bytes = 1});
    const char changed = static_cast<char>(old.front() ^ 1);
    testing::write_at(store_.pool(), leases_.at(lease).extents(), offset, bytes_of({&changed, 1}));
  }
  // One at a time, as a server has.  False: all has been seen.
  bool scrub(std::uint64_t bytes_max) {
    if (!scrub_) scrub_.emplace(store_);
    return scrub_->step(bytes_max);
  }
  std::uint64_t scrub_held_bytes() const { return scrub_ ? scrub_->held_bytes() : 0; }
  // (values, corrupt) of the scrub, which ends with it.
  std::pair<std::uint64_t, std::uint64_t> end_scrub() {
    const auto found = scrub_ ? scrub_->found() : Scrub::Found{};
    scrub_.reset();
    return {found.values, found.corrupt};
  }
  void drop_corrupt(Number lease) { store_.drop_corrupt(leases_.at(lease)); }
  void release(Number lease) { leases_.erase(lease); }

  NamespaceId intern(const std::string& space) { return store_.intern(space).value(); }
  bool exists(NamespaceId space, const nb::bytes& key) {
    return store_.exists(space, view_of(key));
  }
  bool is_written(NamespaceId space, const nb::bytes& key) {
    return store_.is_written(space, view_of(key));
  }
  bool erase(NamespaceId space, const nb::bytes& key) { return store_.erase(space, view_of(key)); }
  std::size_t purge(NamespaceId space) { return store_.purge(space); }
  std::uint64_t evict(std::uint64_t bytes) { return store_.evict(bytes); }
  std::size_t key_count(NamespaceId space) { return store_.key_count(space); }
  std::string check_integrity() { return store_.check_integrity(); }

  nb::dict counters() {
    const StoreCounters now = store_.counters();
    nb::dict counters;
    counters["capacity_bytes"] = now.capacity_bytes;
    counters["free_bytes"] = now.free_bytes;
    counters["reserved_bytes"] = now.reserved_bytes;
    counters["quarantined_bytes"] = now.quarantined_bytes;
    counters["sealed_bytes"] = now.sealed_bytes;
    counters["keys"] = now.keys;
    counters["pins"] = now.pins;
    counters["staged_values"] = now.staged_values;
    counters["evictions"] = now.evictions;
    counters["corrupt"] = now.corrupt;
    counters["unaccounted_bytes"] = now.unaccounted_bytes();
    return counters;
  }

 private:
  Number hold(Lease lease) {
    leases_.emplace(++last_, std::move(lease));
    return last_;
  }

  Store store_;  // outlives what is held of it
  Number last_ = 0;
  std::map<Number, Reservation> reservations_;
  std::map<Number, Quarantine> quarantines_;
  std::map<Number, Lease> leases_;
  std::optional<Scrub> scrub_;
};

}  // namespace

void init_store(nb::module_& module) {
  module.def(
      "checksum",
      [](const nb::bytes& data, std::uint64_t position) {
        return checksum(bytes_of(view_of(data)), position);
      },
      nb::arg("data"), nb::arg("position") = 0);
  nb::class_<TestStore>(module, "TestStore")
      .def(nb::init<std::uint64_t, const std::string&, std::uint64_t, std::uint32_t>(),
           nb::arg("pool_bytes"), nb::arg("policy") = "lru", nb::arg("staged_bytes_max") = 0,
           nb::arg("shard_count") = 16)
      .def("reserve", &TestStore::reserve, nb::arg("space"), nb::arg("key"), nb::arg("value_bytes"),
           nb::arg("replaces") = false)
      .def("claim", &TestStore::claim)
      .def("unclaim", &TestStore::unclaim)
      .def("filled", &TestStore::filled)
      .def("filled_ranges", &TestStore::filled_ranges)
      .def("is_complete", &TestStore::is_complete)
      .def("seal", &TestStore::seal)
      .def("abort", &TestStore::abort)
      .def("quarantine", &TestStore::quarantine)
      .def("end_quarantine", &TestStore::end_quarantine)
      .def("find", &TestStore::find)
      .def("match_prefix", &TestStore::match_prefix, nb::arg("space"), nb::arg("keys"),
           nb::arg("group") = 1)
      .def("read", &TestStore::read)
      .def("value_bytes", &TestStore::value_bytes)
      .def("range_checksum", &TestStore::range_checksum)
      .def("flip", &TestStore::flip)
      .def("scrub", &TestStore::scrub)
      .def("scrub_held_bytes", &TestStore::scrub_held_bytes)
      .def("end_scrub", &TestStore::end_scrub)
      .def("drop_corrupt", &TestStore::drop_corrupt)
      .def("release", &TestStore::release)
      .def("intern", &TestStore::intern)
      .def("exists", &TestStore::exists)
      .def("is_written", &TestStore::is_written)
      .def("erase", &TestStore::erase)
      .def("purge", &TestStore::purge)
      .def("evict", &TestStore::evict)
      .def("key_count", &TestStore::key_count)
      .def("check_integrity", &TestStore::check_integrity)
      .def("counters", &TestStore::counters);
}

}  // namespace infinistore
