#pragma once
// ServerOptions: what a server is started with.  No defaults here: infinistore/config.py has them,
// and tests/test_mirrors.py compares the names with server/native.py.

#include <cstdint>
#include <string>
#include <vector>

namespace infinistore {

// Whose namespaces are below its name, and nobody else's.
struct Tenant {
  std::string name;
  std::string token;              // never empty
  std::uint64_t quota_bytes = 0;  // 0: none
};

struct ServerOptions {
  std::string host;
  std::uint16_t port;
  std::string unix_socket;  // empty: none
  std::uint64_t pool_bytes;
  std::string huge_pages;   // auto, on, off
  std::uint32_t workers;    // at least 1
  std::string rdma;         // auto, on, off
  std::string rdma_device;  // "": any; NAME or NAME:PORT
  std::string token;        // opens all; empty: anybody, unless there are tenants
  std::string read_token;   // opens all for reading; empty: none
  std::vector<Tenant> tenants;
  std::string tls_cert_file;  // PEM; empty: TCP's bytes travel as they are
  std::string tls_key_file;
  std::string eviction;  // a policy's name
  double stage_timeout_s;
  double stage_share;  // of the pool, that unsealed values may take
  double lease_max_s;
  std::uint32_t sessions_max;
  double heat_half_life_s;
  std::string log_level;   // debug, info, warning, error
  std::string log_format;  // text, json
  std::string version;     // told to clients
  // For tests that must see its harm: what a vanished writer may still touch is reused at once.
  bool without_fencing;
};

}  // namespace infinistore
