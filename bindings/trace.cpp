// TraceStore: a store whose values have sizes but no bytes, for `infinistore bench trace` and
// churn.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <bit>
#include <map>
#include <type_traits>

#include "bindings/init.h"
#include "bindings/unlocked.h"
#include "core/store/eviction/policies.h"
#include "core/store/store.h"

namespace infinistore {
namespace {

namespace nb = nanobind;

using Numbers = std::map<std::string, double>;

// Shows each field and its name.
template <typename Tuning, typename See>
void each_field(Tuning& tuning, const See& see) {
  see("young_part", tuning.young_part);
  see("middle_part", tuning.middle_part);
  see("seen_per_entry", tuning.seen_per_entry);
  see("learn_every_max", tuning.learn_every_max);
  see("samples_halved", tuning.samples_halved);
  see("prior_hits", tuning.prior_hits);
  see("prior_of_ages", tuning.prior_of_ages);
  see("prior_of_scale", tuning.prior_of_scale);
  see("prior_of_kind", tuning.prior_of_kind);
}

Numbers numbers_of(const ReuseTuning& tuning) {
  Numbers found;
  each_field(tuning,
             [&](const char* name, auto value) { found[name] = static_cast<double>(value); });
  return found;
}

ReuseTuning tuning_of(const Numbers& numbers) {
  ReuseTuning tuning;
  std::size_t known = 0;
  each_field(tuning, [&](const char* name, auto& value) {
    const auto at = numbers.find(name);
    if (at == numbers.end()) return;
    ++known;
    const bool is_count = std::is_integral_v<std::remove_reference_t<decltype(value)>>;
    if (!(at->second >= (is_count ? 1 : 1e-6) && at->second <= 1e12)) {
      throw nb::value_error("not a number that reuse can take");
    }
    value = static_cast<std::remove_reference_t<decltype(value)>>(at->second);
  });
  if (known != numbers.size()) throw nb::value_error("reuse has no number of that name");
  return tuning;
}

class TraceStore {
 public:
  TraceStore(std::uint64_t pool_bytes, const std::string& policy, std::uint32_t shard_count,
             const Numbers& reuse)
      : store_(pool_of(pool_bytes),
               {.shard_count = shard_count,
                .eviction_policy = policy_of(policy),
                .reuse_tuning = tuning_of(reuse)},
               clock_) {}

  // A prompt's blocks in order: looks the prefix up, puts what is missing, then lets the hits go.
  // Returns how many were hits.
  std::size_t prompt(const std::vector<std::uint64_t>& blocks, std::uint64_t block_bytes) {
    std::vector<Key> keys(blocks.size());
    std::vector<std::string_view> views;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      keys[i] = std::bit_cast<Key>(blocks[i]);
      views.emplace_back(keys[i].data(), keys[i].size());
    }
    const Unlocked unlocked;
    std::vector<Lease> leases;
    const std::size_t hits = store_.match_prefix(0, views, 1, &leases);
    for (std::size_t i = hits; i < views.size(); ++i) {
      write({.key = views[i],
             .value_bytes = block_bytes,
             .parent = i == 0 ? std::string_view() : views[i - 1],
             .depth = static_cast<std::uint32_t>(i),
             .claims_whole = true});
    }
    while (!leases.empty()) leases.pop_back();
    return hits;
  }

  // A Code.
  int put(std::uint64_t block, std::uint64_t value_bytes) {
    const Key key = std::bit_cast<Key>(block);
    return static_cast<int>(
        write({.key = {key.data(), key.size()}, .value_bytes = value_bytes, .claims_whole = true}));
  }
  bool exists(std::uint64_t block) {
    const Key key = std::bit_cast<Key>(block);
    return store_.exists(0, {key.data(), key.size()});
  }
  std::pair<std::uint64_t, std::uint64_t> free_and_evictions() {
    return {store_.counters().free_bytes, store_.counters().evictions};
  }
  std::vector<double> hit_rates(const std::vector<std::uint64_t>& pool_bytes) {
    return store_.hit_curve(pool_bytes).hit_rates;
  }
  std::string check_integrity() { return store_.check_integrity(); }

 private:
  using Key = std::array<char, sizeof(std::uint64_t)>;

  static Pool pool_of(std::uint64_t bytes) {
    auto pool = Pool::create({.bytes = bytes, .populate_on_touch = true});
    if (!pool) throw nb::value_error(pool.error().message.c_str());
    return std::move(*pool);
  }
  static std::string policy_of(const std::string& name) {
    if (!make_eviction_scheme(name)) throw nb::value_error("no eviction policy has that name");
    return name;
  }
  Code write(const Intent& intent) {
    auto reservation = store_.reserve(intent);
    return reservation ? std::move(*reservation).seal_whole(0) : reservation.code();
  }

  MonotonicClock clock_;
  Store store_;
};

}  // namespace

void init_trace(nb::module_& module) {
  nb::class_<TraceStore>(module, "TraceStore")
      .def(nb::init<std::uint64_t, const std::string&, std::uint32_t, const Numbers&>(),
           nb::arg("pool_bytes"), nb::arg("policy"), nb::arg("shard_count"),
           nb::arg("reuse") = Numbers())
      .def("prompt", &TraceStore::prompt, nb::arg("blocks"), nb::arg("block_bytes"))
      .def("put", &TraceStore::put, nb::arg("block"), nb::arg("value_bytes"))
      .def("exists", &TraceStore::exists, nb::arg("block"))
      .def("free_and_evictions", &TraceStore::free_and_evictions)
      .def("hit_rates", &TraceStore::hit_rates, nb::arg("pool_bytes"))
      .def("check_integrity", &TraceStore::check_integrity);
  module.def("reuse_tuning", [] { return numbers_of({}); });
  module.def("eviction_policies", [] {
    std::vector<std::string> names;
    for (const auto name : eviction_policy_names()) names.emplace_back(name);
    return names;
  });
}

}  // namespace infinistore
