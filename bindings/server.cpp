// Server for Python: start, stop, and what management asks of it.  No thread of ours calls Python.

#include "core/server/server.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/init.h"
#include "bindings/unlocked.h"

namespace nb = nanobind;

namespace infinistore {
namespace {

// An option by name, from an object's attributes or a dict's items.
template <class T>
T option(nb::handle options, const char* name) {
  nb::object value = nb::isinstance<nb::dict>(options) ? nb::object(options[name])
                                                       : nb::object(options.attr(name));
  T converted{};
  if (!nb::try_cast<T>(value, converted)) {
    throw std::invalid_argument(std::string("server option ") + name + " has the wrong type");
  }
  return converted;
}

// (name, token, quota_bytes) each.
std::vector<Tenant> tenants(nb::handle options) {
  using Row = std::tuple<std::string, std::string, std::uint64_t>;
  std::vector<Tenant> all;
  for (auto& [name, token, quota] : option<std::vector<Row>>(options, "tenants")) {
    all.push_back({.name = name, .token = token, .quota_bytes = quota});
  }
  return all;
}

ServerOptions convert(nb::handle options) {
  return {.host = option<std::string>(options, "host"),
          .port = option<std::uint16_t>(options, "port"),
          .unix_socket = option<std::string>(options, "unix_socket"),
          .pool_bytes = option<std::uint64_t>(options, "pool_bytes"),
          .huge_pages = option<std::string>(options, "huge_pages"),
          .workers = option<std::uint32_t>(options, "workers"),
          .rdma = option<std::string>(options, "rdma"),
          .rdma_device = option<std::string>(options, "rdma_device"),
          .token = option<std::string>(options, "token"),
          .read_token = option<std::string>(options, "read_token"),
          .tenants = tenants(options),
          .tls_cert_file = option<std::string>(options, "tls_cert_file"),
          .tls_key_file = option<std::string>(options, "tls_key_file"),
          .eviction = option<std::string>(options, "eviction"),
          .stage_timeout_s = option<double>(options, "stage_timeout_s"),
          .stage_share = option<double>(options, "stage_share"),
          .lease_max_s = option<double>(options, "lease_max_s"),
          .sessions_max = option<std::uint32_t>(options, "sessions_max"),
          .heat_half_life_s = option<double>(options, "heat_half_life_s"),
          .log_level = option<std::string>(options, "log_level"),
          .log_format = option<std::string>(options, "log_format"),
          .version = option<std::string>(options, "version"),
          .without_fencing = option<bool>(options, "without_fencing")};
}

nb::dict start(Server& server) {
  Result<Server::Started> started = [&] {
    const Unlocked release;
    return server.start();
  }();
  if (!started) throw std::runtime_error(started.error().message);
  nb::dict facts;
  facts["port"] = started->port;
  facts["unix_socket"] = started->unix_socket;
  facts["incarnation"] = started->incarnation;
  facts["pool_bytes"] = started->pool_bytes;
  facts["rdma"] = started->rdma;
  return facts;
}

void stop(Server& server, double drain_s) {
  const Unlocked release;
  server.stop(static_cast<Nanos>(drain_s * static_cast<double>(kSecond)));
}

nb::dict snapshot(const Server& server) {
  const auto counters = [&] {
    const Unlocked release;
    return server.snapshot();
  }();
  nb::dict facts;
  for (const auto& counter : counters) facts[counter.name.c_str()] = counter.value;
  return facts;
}

nb::bytes as_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

nb::list staged(const Server& server, std::size_t count_max) {
  const auto views = [&] {
    const Unlocked release;
    return server.staged(count_max);
  }();
  nb::list values;
  for (const auto& view : views) {
    nb::list filled;
    for (const auto& range : view.filled) filled.append(nb::make_tuple(range.offset, range.bytes));
    nb::dict value;
    value["namespace"] = as_bytes(view.space);
    value["key"] = as_bytes(view.key);
    value["value_bytes"] = view.value_bytes;
    value["filled_bytes"] = view.filled_bytes;
    value["filled"] = filled;
    value["idle_s"] = static_cast<double>(view.idle) / static_cast<double>(kSecond);
    values.append(value);
  }
  return values;
}

nb::tuple shown(const Heat::Key& key) {
  return nb::make_tuple(as_bytes(key.space), as_bytes(key.key), key.value_bytes, key.bytes_per_s);
}

nb::list hottest(const Server& server, std::size_t count_max) {
  const auto keys = [&] {
    const Unlocked release;
    return server.hottest(count_max);
  }();
  nb::list rows;
  for (const auto& key : keys) rows.append(shown(key));
  return rows;
}

nb::tuple list_keys(const Server& server, std::uint64_t cursor, std::size_t count_max) {
  const auto page = [&] {
    const Unlocked release;
    return server.list_keys(cursor, count_max);
  }();
  nb::list rows;
  for (const auto& key : page.keys) rows.append(shown(key));
  return nb::make_tuple(page.next, rows);
}

std::uint64_t begin_move(Server& server, const std::string& space,
                         const std::vector<nb::bytes>& keys) {
  std::vector<std::string_view> views;
  for (const auto& key : keys) views.emplace_back(key.c_str(), key.size());
  const Unlocked release;
  return server.begin_move(space, views);
}

nb::dict tenant_use(const Server& server, const std::string& tenant) {
  const QuotaUse use = server.tenant_use(tenant);
  nb::dict facts;
  facts["used_bytes"] = use.bytes;
  facts["quota_evictions"] = use.evictions;
  facts["quota_evicted_bytes"] = use.evicted_bytes;
  return facts;
}

const char* name_of(Reason reason) {
  switch (reason) {
    case Reason::kRoom:
      return "room";
    case Reason::kWatermark:
      return "watermark";
    case Reason::kQuota:
      return "quota";
    case Reason::kErased:
      return "erased";
    case Reason::kPurged:
      return "purged";
    case Reason::kCorrupt:
      return "corrupt";
  }
  return "unknown";
}

const char* name_of(KeyStory::State state) {
  switch (state) {
    case KeyStory::State::kPresent:
      return "present";
    case KeyStory::State::kWritten:
      return "written";
    case KeyStory::State::kLeft:
      return "left";
    case KeyStory::State::kUnknown:
      break;
  }
  return "unknown";
}

double seconds(Nanos time) { return static_cast<double>(time) / static_cast<double>(kSecond); }

nb::list explain(const Server& server, const std::string& space,
                 const std::vector<nb::bytes>& keys) {
  std::vector<std::string_view> views;
  for (const auto& key : keys) views.emplace_back(key.c_str(), key.size());
  const auto answers = [&] {
    const Unlocked release;
    return server.explain(space, views);
  }();
  nb::list all;
  for (const auto& answer : answers) {
    nb::dict facts;
    facts["state"] = name_of(answer.story.state);
    if (answer.story.state == KeyStory::State::kLeft) {
      facts["reason"] = name_of(answer.story.departure.reason);
      facts["ago_s"] = seconds(answer.ago);
      facts["pressing"] = as_bytes(answer.pressing);
    } else if (answer.story.state == KeyStory::State::kUnknown) {
      nb::list elsewhere;
      for (const auto& name : answer.elsewhere) elsewhere.append(as_bytes(name));
      facts["elsewhere"] = elsewhere;
      facts["forgotten"] = answer.story.forgotten_at != 0;
    }
    all.append(facts);
  }
  return all;
}

nb::list spaces(const Server& server) {
  const auto views = [&] {
    const Unlocked release;
    return server.spaces();
  }();
  nb::list all;
  for (const auto& view : views) {
    nb::dict facts;
    facts["namespace"] = as_bytes(view.name);
    facts["keys"] = view.counts.keys;
    facts["bytes"] = view.counts.bytes;
    facts["hits"] = view.counts.hits;
    facts["misses"] = view.counts.misses;
    facts["idle_s"] = view.idle ? nb::cast(seconds(*view.idle)) : nb::none();
    all.append(facts);
  }
  return all;
}

nb::dict as_dict(const HitCurve::Picture& picture) {
  nb::dict facts;
  facts["asked"] = picture.asked;
  facts["sampled_share"] = picture.sampled_share;
  facts["bytes_max"] = picture.bytes_max;
  facts["hit_rates"] = picture.hit_rates;
  return facts;
}

nb::list recent_log(const Server& server) {
  nb::list lines;
  for (const auto& line : server.recent_log()) {
    const auto level = level_name(line.level);
    nb::dict shown;
    shown["time_s"] = static_cast<double>(line.time_s);
    shown["level"] = nb::str(level.data(), level.size());
    // A peer's words may be in it, in any encoding.
    shown["text"] = nb::steal(PyUnicode_DecodeUTF8(
        line.text.data(), static_cast<Py_ssize_t>(line.text.size()), "replace"));
    lines.append(shown);
  }
  return lines;
}

// Steps of a scrub: one thread at a time, which is Python's to see to.
nb::dict found(const Scrub& scrub) {
  const auto counts = scrub.found();
  nb::list damaged;
  for (const auto& each : counts.damaged) {
    damaged.append(nb::make_tuple(as_bytes(each.space), as_bytes(each.key)));
  }
  nb::dict facts;
  facts["values"] = counts.values;
  facts["bytes"] = counts.bytes;
  facts["corrupt"] = counts.corrupt;
  facts["damaged"] = damaged;
  return facts;
}

}  // namespace

void init_server(nb::module_& module) {
  nb::class_<Scrub>(module, "Scrub", "A walk over all values that compares them with their sums.")
      .def("step", &Scrub::step, nb::arg("bytes_max"), nb::call_guard<Unlocked>(),
           "Sums so many bytes at most; False: all is seen.")
      .def("found", &found, "Values and bytes seen; how many were damaged and dropped, and which.");
  nb::class_<Server>(module, "Server", "The store and the threads that serve it.")
      .def(
          "__init__", [](Server* self, nb::object options) { new (self) Server(convert(options)); },
          nb::arg("options"))
      .def("start", &start, "Serves; raises RuntimeError naming what is wrong and the remedy.")
      .def("stop", &stop, nb::arg("drain_s"), "Ends all sessions, after at most `drain_s`.")
      .def("snapshot", &snapshot, "Every counter at this moment.")
      .def(
          "evict", [](Server& self, std::uint64_t bytes) { return self.evict(bytes); },
          nb::arg("bytes_wanted"), nb::call_guard<Unlocked>(),
          "Evicts so many bytes if it can; the number that it did.")
      .def(
          "purge",
          [](Server& self, const std::optional<std::string>& space, bool below) {
            return self.purge(space, below);
          },
          nb::arg("namespace").none(), nb::arg("below") = false, nb::call_guard<Unlocked>(),
          "Erases a namespace's keys (`below`: of all whose names begin so), or all; how many.")
      .def(
          "key_count",
          [](const Server& self, const std::optional<std::string>& space, bool below) {
            return self.key_count(space, below);
          },
          nb::arg("namespace").none(), nb::arg("below") = false, nb::call_guard<Unlocked>(),
          "The keys of a namespace (`below`: of all whose names begin so), or of all.")
      .def("tenant_use", &tenant_use, nb::arg("tenant"),
           "What a tenant's namespaces hold of the pool, and what was evicted for its quota.")
      .def(
          "reload_certificate", [](Server& self) { return self.reload_tls().message; },
          nb::call_guard<Unlocked>(),
          "Reads it again, for connections to come; why the old one stays, empty if it does not.")
      .def("recent_log", &recent_log, "The newest warnings and errors, oldest first.")
      .def("check_integrity", &Server::check_integrity, nb::call_guard<Unlocked>(),
           "What is wrong with the books, empty if nothing; everybody waits meanwhile.")
      .def("explain", &explain, nb::arg("namespace"), nb::arg("keys"),
           "What became of each key; of at most 1,024.")
      .def("namespaces", &spaces,
           "Keys, bytes, hits and misses of each, and when it was used last.")
      .def(
          "hit_curve",
          [](const Server& self, const std::vector<std::uint64_t>& pool_bytes) {
            return as_dict(self.hit_curve(pool_bytes));
          },
          nb::arg("pool_bytes"), "Hit rates that pools of such sizes would have had.")
      .def("scrub", &Server::make_scrub, nb::keep_alive<0, 1>(), "A new walk over all values.")
      .def("hottest", &hottest, nb::arg("count_max"),
           "(namespace, key, value_bytes, bytes_per_s) of what it serves most, the hottest first.")
      .def("list_keys", &list_keys, nb::arg("cursor"), nb::arg("count_max"),
           "The next cursor (0: the end; begin at 0) and rows as of hottest(), some of all keys'.")
      .def("begin_move", &begin_move, nb::arg("namespace"), nb::arg("keys"),
           "Notes which values these keys have; a number for end_move(), 0: too much is moving.")
      .def("end_move", &Server::end_move, nb::arg("id"), nb::call_guard<Unlocked>(),
           "Whether each key has had that value all the time.")
      .def("staged", &staged, nb::arg("count_max") = 1000,
           "Values being written, at most so many.");
}

}  // namespace infinistore
