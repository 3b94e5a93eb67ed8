// Client, Batch and Call for Python.  Whatever waits gives the GIL away; no thread of ours takes
// it.
#include "core/client/client.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <optional>

#include "bindings/convert.h"
#include "bindings/init.h"
#include "bindings/pack.h"
#include "bindings/unlocked.h"

namespace nb = nanobind;

namespace infinistore {
namespace {

// Ctrl-C is looked for so often while something waits.
constexpr Nanos kSignalInterval = 50 * kMillisecond;

const Clock& the_clock() {
  static const MonotonicClock clock;
  return clock;
}

// Becomes _native.Failure(code, message).
struct Failed final : std::exception {
  explicit Failed(Error what_failed) : error(std::move(what_failed)) {}
  const char* what() const noexcept override { return error.message.c_str(); }

  Error error;
};

bool wait_for(Client& client, Operation& operation, std::optional<double> timeout_s) {
  const Nanos end = timeout_s ? the_clock().now() + nanos(*timeout_s) : -1;
  while (!operation.is_done()) {
    const Nanos left = end < 0 ? kSignalInterval : end - the_clock().now();
    if (left <= 0) return false;
    {
      const Unlocked release;
      client.wait(operation, std::min(left, kSignalInterval));
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
  return true;
}

std::pair<int, std::string> failure_of(const Operation& operation) {
  return {static_cast<int>(operation.failure().code), operation.failure().message};
}

nb::bytes outcome_bytes(const std::vector<Code>& outcomes) {
  static_assert(sizeof(Code) == 1);
  return nb::bytes(outcomes.data(), outcomes.size());
}

class PyClient {
 public:
  PyClient(std::unique_ptr<Client> client) : client_(std::move(client)), pid_(::getpid()) {}
  ~PyClient() {
    if (is_forked()) {
      leak();
      return;
    }
    const Unlocked release;
    client_.reset();
  }
  PyClient(const PyClient&) = delete;
  PyClient& operator=(const PyClient&) = delete;

  Client& operator*() const noexcept { return *client_; }
  Client* operator->() const noexcept { return client_.get(); }
  bool is_forked() const noexcept { return ::getpid() != pid_; }
  // A forked child has none of our threads, and their locks may be held for ever.
  void close_after_fork() noexcept {
    client_->close_after_fork();
    leak();
  }

 private:
  void leak() noexcept { [[maybe_unused]] const auto* const left = client_.release(); }

  std::unique_ptr<Client> client_;
  pid_t pid_;
};

// A handle of an operation.  When it dies before the operation has ended, it cancels it and waits
// for the fence: only then may Python free the memory that it kept.
template <class T>
class Handle {
 public:
  Handle(nb::object client, std::unique_ptr<T> operation, nb::object kept)
      : client_(std::move(client)), operation_(std::move(operation)), kept_(std::move(kept)) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (client().is_forked()) {
      [[maybe_unused]] const auto* const left = operation_.release();
      return;
    }
    if (operation_->is_done()) return;
    cancel();
    const Unlocked release;
    operation_->wait(-1);
  }

  T& operator*() const noexcept { return *operation_; }
  T* operator->() const noexcept { return operation_.get(); }
  void cancel() const { client()->cancel(*operation_); }
  bool is_done() const {
    return client().is_forked() ? operation_->is_done() : client()->is_done(*operation_);
  }
  PyClient& client() const { return *nb::inst_ptr<PyClient>(client_); }

 private:
  nb::object client_;
  std::unique_ptr<T> operation_;
  nb::object kept_;  // whatever owns the caller's memory
};
using PyBatch = Handle<Batch>;
using PyCall = Handle<Call>;

template <class T>
T setting(nb::handle config, const char* name) {
  return nb::cast<T>(config.attr(name));
}

TransportChoice transport_of(const std::string& name) {
  if (name == "shm") return TransportChoice::kShm;
  if (name == "rdma") return TransportChoice::kRdma;
  if (name == "tcp") return TransportChoice::kTcp;
  return TransportChoice::kAuto;
}

std::unique_ptr<PyClient> connect(const std::string& host, std::uint16_t port,
                                  const std::string& space, const std::string& client_name,
                                  bool tls, nb::handle config) {
  ClientOptions options{
      .host = host,
      .port = port,
      .token = setting<std::string>(config, "token"),
      .space = space,
      .client_name = client_name,
      .transport = transport_of(setting<std::string>(config, "transport")),
      .tls = tls,
      .tls_ca_file = setting<std::string>(config, "tls_ca_file"),
      .read_only = setting<bool>(config, "read_only"),
      .rdma_device = setting<std::string>(config, "rdma_device"),
      .channels = setting<std::size_t>(config, "channels"),
      .connect_timeout = nanos(setting<double>(config, "connect_timeout_s")),
      .progress_timeout = nanos(setting<double>(config, "progress_timeout_s")),
      .verifies = setting<bool>(config, "verify"),
      .batch_keys_max = setting<std::size_t>(config, "batch_keys_max"),
      .batch_bytes_max = setting<std::uint64_t>(config, "batch_bytes_max"),
      .requests_max = setting<std::size_t>(config, "requests_max"),
  };
  std::optional<Result<std::unique_ptr<Client>>> client;
  {
    const Unlocked release;
    client.emplace(Client::connect(std::move(options), the_clock()));
  }
  if (!client->ok()) throw Failed{client->error()};
  return std::make_unique<PyClient>(std::move(**client));
}

template <class T, class Spec>
std::unique_ptr<Handle<T>> submit(nb::object self, Spec spec, nb::object kept) {
  auto& client = *nb::inst_ptr<PyClient>(self);
  auto operation = std::make_unique<T>(std::move(spec));
  auto& submitted = *operation;
  auto handle = std::make_unique<Handle<T>>(std::move(self), std::move(operation), std::move(kept));
  {
    const Unlocked release;
    client->submit(submitted);
  }
  return handle;
}

// Says that a batch's memory is a GPU's, and free to be used after what `stream` has to do now.
// Negative: it is the host's.
void place_on(BatchSpec& spec, int device, std::uint64_t stream) {
  if (device < 0) return;
  const Unlocked release;
  const auto gpu = Gpu::of(device);
  if (!gpu) throw Failed{gpu.error()};
  // First, so that it is mostly open when the batch leaves.
  auto gate = Gate::after(*gpu.value(), reinterpret_cast<CuStream>(stream));
  if (!gate) throw Failed{gate.error()};
  spec.gate = std::move(*gate);
  const auto error = gpu.value()->check_memory(spec.addresses, spec.segment_bytes);
  if (error.code != Code::kOk) throw Failed{error};
}

OnExists on_exists_of(std::uint8_t number) {
  if (number > kOnExistsLast) refuse("on_exists is " + std::to_string(number));
  return static_cast<OnExists>(number);
}

int gpu_of(std::uint64_t address) {
  const auto ordinal = Gpu::owner_of(address);
  if (!ordinal) throw Failed{ordinal.error()};
  return ordinal.value();
}

std::unique_ptr<PyBatch> put(nb::object self, Pack& pack, std::uint64_t value_bytes,
                             std::uint64_t value_offset, std::uint8_t on_exists, int device,
                             std::uint64_t stream, bool by_copy_engine, nb::object kept) {
  auto spec = pack.take();
  if (by_copy_engine) spec.mover = Mover::kCopyEngine;
  place_on(spec, device, stream);
  spec.verb = Verb::kPut;
  spec.value_bytes = value_bytes;
  spec.value_offset = value_offset;
  spec.on_exists = on_exists_of(on_exists);
  return submit<Batch>(std::move(self), std::move(spec), std::move(kept));
}

std::unique_ptr<PyBatch> get(nb::object self, Pack& pack, std::uint64_t value_bytes,
                             std::uint64_t value_offset, std::uint32_t wait_ms,
                             std::uint64_t lease_id, int device, std::uint64_t stream,
                             nb::object kept) {
  auto spec = pack.take();
  place_on(spec, device, stream);
  spec.verb = Verb::kGet;
  spec.value_bytes = value_bytes;
  spec.value_offset = value_offset;
  spec.wait_ms = wait_ms;
  spec.lease_id = lease_id;
  return submit<Batch>(std::move(self), std::move(spec), std::move(kept));
}

std::unique_ptr<PyCall> match(nb::object self, Pack& pack, std::uint32_t group,
                              std::uint32_t lease_ms) {
  CallSpec spec;
  spec.opcode = Opcode::kMatch;
  spec.keys = pack.take_keys();
  spec.group = group;
  spec.lease_ms = lease_ms;
  return submit<Call>(std::move(self), std::move(spec), nb::none());
}

template <Opcode opcode>
std::unique_ptr<PyCall> keys_call(nb::object self, Pack& pack) {
  CallSpec spec;
  spec.opcode = opcode;
  spec.keys = pack.take_keys();
  return submit<Call>(std::move(self), std::move(spec), nb::none());
}

std::unique_ptr<PyCall> stats(nb::object self) {
  CallSpec spec;
  spec.opcode = Opcode::kStats;
  return submit<Call>(std::move(self), std::move(spec), nb::none());
}

void post_lease(PyClient& client, std::vector<std::uint64_t> lease_ids, std::uint32_t lease_ms) {
  CallSpec spec;
  spec.opcode = Opcode::kLease;
  spec.lease_ids = std::move(lease_ids);
  spec.lease_ms = lease_ms;
  client->post(std::move(spec));
}

void prepare(PyClient& client, int device) {
  const Unlocked release;
  const auto gpu = Gpu::of(device);
  if (!gpu) throw Failed{gpu.error()};
  const auto error = client->prepare(*gpu.value());
  if (error.code != Code::kOk) throw Failed{error};
}

void keep(PyClient& client, std::uint64_t address, std::uint64_t bytes) {
  const Unlocked release;
  const auto error = client->keep({reinterpret_cast<std::byte*>(address), bytes});
  if (error.code != Code::kOk) throw Failed{error};
}

void forget(PyClient& client, std::uint64_t address) {
  const Unlocked release;
  client->forget(reinterpret_cast<const std::byte*>(address));
}

nb::dict server_of(PyClient& client) {
  const auto server = client->server();
  nb::dict facts;
  facts["incarnation"] = server.incarnation;
  facts["version"] = server.version;
  facts["pool_bytes"] = server.pool_bytes;
  facts["transport"] = server.shares_memory ? "shm" : server.uses_rdma ? "rdma" : "tcp";
  facts["read_only"] = server.reads_only;
  facts["no_sharing_reason"] = server.no_sharing_reason;
  facts["no_rdma_reason"] = server.no_rdma_reason;
  return facts;
}

nb::dict counters_of(PyClient& client) {
  const auto& counters = client->counters();
  nb::dict values;
  values["rdma_bytes"] = counters.rdma_bytes.load();
  values["corrupt"] = counters.corrupt.load();
  values["connects"] = counters.connects.load();
  values["disconnects"] = counters.disconnects.load();
  values["timeouts"] = counters.timeouts.load();
  values["violations"] = counters.violations.load();
  return values;
}

nb::dict call_counters(PyCall& call) {
  nb::dict values;
  for (const auto& counter : call->counters) values[counter.name.c_str()] = counter.value;
  return values;
}

template <class T>
void define_handle(nb::class_<Handle<T>>& type) {
  type.def_prop_ro("id", [](Handle<T>& self) { return self->id(); })
      .def_prop_ro("done", &Handle<T>::is_done)
      .def(
          "wait",
          [](Handle<T>& self, std::optional<double> timeout_s) {
            return wait_for(*self.client(), *self, timeout_s);
          },
          nb::arg("timeout_s").none(), "Whether it ended in time.")
      .def("cancel", &Handle<T>::cancel)
      .def_prop_ro(
          "failure", [](Handle<T>& self) { return failure_of(*self); },
          "Code and message of the first failure; after the end.")
      .def_prop_ro(
          "outcomes", [](Handle<T>& self) { return outcome_bytes(self->outcomes); },
          "A code for each key; after the end.");
}

void define_client(nb::module_& module) {
  nb::class_<PyClient>(module, "Client", "A server, as a program sees it.")
      .def("put", &put, nb::arg("pack"), nb::arg("value_bytes"), nb::arg("value_offset"),
           nb::arg("on_exists"), nb::arg("device"), nb::arg("stream"), nb::arg("by_copy_engine"),
           nb::arg("kept").none())
      .def("get", &get, nb::arg("pack"), nb::arg("value_bytes"), nb::arg("value_offset"),
           nb::arg("wait_ms"), nb::arg("lease_id"), nb::arg("device"), nb::arg("stream"),
           nb::arg("kept").none())
      .def("prepare", &prepare, nb::arg("device"))
      .def("rouse", [](PyClient& self) { self->rouse(); })
      .def("keep", &keep, nb::arg("address"), nb::arg("bytes"))
      .def("forget", &forget, nb::arg("address"))
      .def("match", &match, nb::arg("pack"), nb::arg("group"), nb::arg("lease_ms"))
      .def("exists", &keys_call<Opcode::kExists>, nb::arg("pack"))
      .def("erase", &keys_call<Opcode::kErase>, nb::arg("pack"))
      .def("abort", &keys_call<Opcode::kAbort>, nb::arg("pack"))
      .def("stats", &stats)
      .def("post_lease", &post_lease, nb::arg("lease_ids"), nb::arg("lease_ms"))
      .def("server", &server_of)
      .def("counters", &counters_of)
      .def(
          "completion_fd", [](PyClient& self) { return self->completions().fd(); },
          "Readable while take_completed() has something to tell.")
      .def("take_completed", [](PyClient& self) { return self->completions().take(); })
      .def(
          "close", [](PyClient& self) { self->close(); }, nb::call_guard<Unlocked>())
      .def("close_after_fork", &PyClient::close_after_fork);
}

}  // namespace

void init_client(nb::module_& module) {
  // Its own translation would pass on the message only; the later one comes first.
  const auto failure = nb::exception<Failed>(module, "Failure");
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* type) {
        try {
          std::rethrow_exception(thrown);
        } catch (const Failed& failed) {
          const auto arguments =
              nb::make_tuple(static_cast<int>(failed.error.code), failed.error.message);
          PyErr_SetObject(static_cast<PyObject*>(type), arguments.ptr());
        }
      },
      failure.ptr());
  init_pack(module);
  nb::class_<PyBatch> batch(module, "Batch", "A put or get in flight.");
  define_handle(batch);
  batch.def(
      "key",
      [](PyBatch& self, std::size_t index) {
        if (index >= self->spec.keys.size()) throw nb::index_error();
        const auto key = self->spec.keys[index];
        return nb::bytes(key.data(), key.size());
      },
      nb::arg("index"));
  batch.def_prop_ro(
      "value_bytes", [](PyBatch& self) { return self->value_bytes; },
      "After a get with set_up_to(): how long each value that was found is.");
  nb::class_<PyCall> call(module, "Call", "A small request in flight.");
  define_handle(call);
  call.def_prop_ro("blocks", [](PyCall& self) { return self->blocks; })
      .def_prop_ro("lease_ids", [](PyCall& self) { return self->lease_ids; })
      .def_prop_ro("counters", &call_counters);
  define_client(module);  // after what its signatures name
  module.def("gpu_of", &gpu_of, nb::arg("address"), "The CUDA device whose memory this is.");
  module.def("connect", &connect, nb::arg("host"), nb::arg("port"), nb::arg("space"),
             nb::arg("client_name"), nb::arg("tls"), nb::arg("config"));
}

}  // namespace infinistore
