// The extension module infinistore._native.
#include <nanobind/nanobind.h>

#include "bindings/init.h"

NB_MODULE(_native, module) {
  // A program may end with clients open and daemon threads in a call: no reason to print at its
  // end.
  nanobind::set_leak_warnings(false);
  module.doc() = "The native half of InfiniStore; not an interface for users.";
  infinistore::init_bench(module);
  infinistore::init_client(module);
  infinistore::init_server(module);
  infinistore::init_store(module);
  infinistore::init_trace(module);
}
