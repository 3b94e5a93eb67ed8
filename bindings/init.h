#pragma once
// What each file of bindings/ adds to the module.

#include <nanobind/nanobind.h>

namespace infinistore {

void init_bench(nanobind::module_& module);
void init_client(nanobind::module_& module);
void init_server(nanobind::module_& module);
void init_store(nanobind::module_& module);
void init_trace(nanobind::module_& module);

}  // namespace infinistore
