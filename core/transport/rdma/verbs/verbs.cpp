#include "core/transport/rdma/verbs/verbs.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

namespace infinistore {
namespace {

Error missing(const std::string& why) {
  return {Code::kSetup, "RDMA cannot be used: " + why +
                            "; install rdma-core 32 or newer (Debian and Ubuntu: apt-get install "
                            "libibverbs1 ibverbs-providers)"};
}

// Most calls have an older form under the same name, which a plain dlsym() may give.
template <class Function>
void find(void* library, const char* name, const char* version, Function& function,
          std::string& lacks) {
  void* symbol = ::dlvsym(library, name, version);
  if (symbol == nullptr) symbol = ::dlsym(library, name);  // one without versions: a double
  function = reinterpret_cast<Function>(symbol);
  if (symbol == nullptr && lacks.empty()) lacks = name;
}

// The name of the first call that is not there; empty: all are.
std::string find_all(void* library, Verbs& verbs) {
  constexpr const char* kBase = "IBVERBS_1.1";
  std::string lacks;
  find(library, "ibv_get_device_list", kBase, verbs.device_list, lacks);
  find(library, "ibv_free_device_list", kBase, verbs.free_device_list, lacks);
  find(library, "ibv_get_device_name", kBase, verbs.device_name, lacks);
  find(library, "ibv_open_device", kBase, verbs.open_device, lacks);
  find(library, "ibv_close_device", kBase, verbs.close_device, lacks);
  find(library, "ibv_query_device", kBase, verbs.query_device, lacks);
  find(library, "ibv_query_port", kBase, verbs.query_port, lacks);
  find(library, "_ibv_query_gid_table", "IBVERBS_1.11", verbs.query_gid_table, lacks);
  find(library, "ibv_alloc_pd", kBase, verbs.alloc_pd, lacks);
  find(library, "ibv_dealloc_pd", kBase, verbs.dealloc_pd, lacks);
  find(library, "ibv_reg_mr", kBase, verbs.reg_mr, lacks);
  find(library, "ibv_dereg_mr", kBase, verbs.dereg_mr, lacks);
  find(library, "ibv_create_comp_channel", "IBVERBS_1.0", verbs.create_channel, lacks);
  find(library, "ibv_destroy_comp_channel", "IBVERBS_1.0", verbs.destroy_channel, lacks);
  find(library, "ibv_create_cq", kBase, verbs.create_cq, lacks);
  find(library, "ibv_destroy_cq", kBase, verbs.destroy_cq, lacks);
  find(library, "ibv_get_cq_event", kBase, verbs.get_cq_event, lacks);
  find(library, "ibv_ack_cq_events", kBase, verbs.ack_cq_events, lacks);
  find(library, "ibv_create_qp", kBase, verbs.create_qp, lacks);
  find(library, "ibv_modify_qp", kBase, verbs.modify_qp, lacks);
  find(library, "ibv_destroy_qp", kBase, verbs.destroy_qp, lacks);
  return lacks;
}

Result<const Verbs*> load() {
  const char* const chosen = std::getenv("INFINISTORE_VERBS_LIBRARY");
  const char* const name = chosen != nullptr && *chosen != '\0' ? chosen : "libibverbs.so.1";
  void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return missing(::dlerror());
  static Verbs verbs;
  const auto lacks = find_all(library, verbs);
  if (!lacks.empty()) return missing(std::string(name) + " has no " + lacks);
  return &verbs;
}

}  // namespace

Result<const Verbs*> load_verbs() {
  static const Result<const Verbs*> loaded = load();
  return loaded;
}

}  // namespace infinistore
