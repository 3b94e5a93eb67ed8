// The limits of this machine, for infinistore.bench: addresses in, no result but an outcome's code.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "bindings/init.h"
#include "bindings/unlocked.h"
#include "core/bench/copy_limit.h"
#include "core/bench/gpu_copies.h"
#include "core/bench/round_trip.h"
#include "core/bench/stream_limit.h"

namespace infinistore {
namespace {

namespace nb = nanobind;

using Addresses = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Times = nb::ndarray<std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const std::uint64_t> span_of(const Addresses& addresses) {
  return {addresses.data(), addresses.size()};
}

void bench_copy_blocks(bool nontemporal, const Addresses& targets, const Addresses& sources,
                       std::size_t block_bytes) {
  if (targets.size() != sources.size()) {
    throw std::invalid_argument("targets and sources differ in length");
  }
  const std::span to = span_of(targets);
  const std::span from = span_of(sources);
  const Unlocked unlocked;
  copy_blocks(nontemporal ? CopyLoop::kNonTemporal : CopyLoop::kMemcpy, to, from, block_bytes);
}

int bench_serve_streams(const std::vector<int>& sockets, const Memory& memory) {
  const MutableBytes bytes(reinterpret_cast<std::byte*>(memory.data()), memory.size());
  const Unlocked unlocked;
  return static_cast<int>(serve_streams(sockets, bytes));
}

int bench_move_blocks(const std::vector<int>& sockets, bool to_far, const Addresses& addresses,
                      std::size_t block_bytes) {
  const std::span blocks = span_of(addresses);
  const Unlocked unlocked;
  return static_cast<int>(move_blocks(
      sockets, to_far ? StreamDirection::kToFar : StreamDirection::kFromFar, blocks, block_bytes));
}

int bench_echo(int in, int out, std::size_t message_bytes) {
  const Unlocked unlocked;
  return static_cast<int>(echo(in, out, message_bytes));
}

int bench_round_trips(int out, int in, std::size_t message_bytes, const Times& taken_ns) {
  const std::span<std::uint64_t> times(taken_ns.data(), taken_ns.size());
  const Unlocked unlocked;
  return static_cast<int>(round_trips(out, in, message_bytes, times));
}

std::unique_ptr<GpuCopyLoop> make_gpu_copy_loop(int device, const Memory& host) {
  const auto gpu = Gpu::of(device);
  if (!gpu) throw std::runtime_error(gpu.error().message);
  return std::make_unique<GpuCopyLoop>(
      *gpu.value(), MutableBytes(reinterpret_cast<std::byte*>(host.data()), host.size()));
}

std::uint64_t run_gpu_copy_loop(GpuCopyLoop& loop, const Addresses& device,
                                const Addresses& offsets, std::uint64_t block_bytes, bool to_host,
                                bool sums, unsigned thread_blocks, unsigned threads) {
  if (device.size() != offsets.size()) {
    throw std::invalid_argument("device and offsets differ in length");
  }
  const std::span from = span_of(device);
  const std::span to = span_of(offsets);
  const Unlocked unlocked;
  const auto taken = loop.run(from, to, block_bytes, to_host ? Way::kToHost : Way::kToDevice, sums,
                              {.thread_blocks = thread_blocks, .threads = threads});
  if (!taken) throw std::runtime_error(taken.error().message);
  return taken.value();
}

}  // namespace

void init_bench(nb::module_& module) {
  module.def("bench_copy_blocks", &bench_copy_blocks, nb::arg("nontemporal"), nb::arg("targets"),
             nb::arg("sources"), nb::arg("block_bytes"),
             "Copies block i from address sources[i] to address targets[i], on this thread.");
  module.def("bench_serve_streams", &bench_serve_streams, nb::arg("sockets"), nb::arg("memory"),
             "Serves bench_move_blocks of another process until its sockets close; a Code.");
  module.def("bench_move_blocks", &bench_move_blocks, nb::arg("sockets"), nb::arg("to_far"),
             nb::arg("addresses"), nb::arg("block_bytes"),
             "Sends blocks to, or fetches them from, bench_serve_streams; a Code.");
  nb::class_<GpuCopyLoop>(module, "GpuCopyLoop",
                          "The copy kernel alone; `host` must stay mapped as long as it lives.")
      .def("run", &run_gpu_copy_loop, nb::arg("device"), nb::arg("offsets"), nb::arg("block_bytes"),
           nb::arg("to_host"), nb::arg("sums"), nb::arg("thread_blocks"), nb::arg("threads"),
           "Nanoseconds of one launch that moves every block.");
  module.def("gpu_copy_loop", &make_gpu_copy_loop, nb::arg("device"), nb::arg("host"),
             nb::keep_alive<0, 2>());
  module.def("bench_echo", &bench_echo, nb::arg("source"), nb::arg("sink"),
             nb::arg("message_bytes"), "Sends back what comes, until the stream ends; a Code.");
  module.def("bench_round_trips", &bench_round_trips, nb::arg("sink"), nb::arg("source"),
             nb::arg("message_bytes"), nb::arg("taken_ns"),
             "Fills taken_ns with the times of round trips to bench_echo; a Code.");
}

}  // namespace infinistore
