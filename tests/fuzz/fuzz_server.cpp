// A server without Python, for builds with sanitizers: says where it listens as the real one does,
// serves until its standard input ends, then frees everything, so that a leak is seen.
//
//   fuzz_server UNIX_SOCKET POOL_BYTES

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "core/server/server.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  infinistore::Server server({.host = "127.0.0.1",
                              .port = 0,
                              .unix_socket = argv[1],
                              .pool_bytes = std::strtoull(argv[2], nullptr, 10),
                              .huge_pages = "auto",
                              .workers = 2,
                              .rdma = "off",
                              .rdma_device = "",
                              .token = "",
                              .read_token = "",
                              .tenants = {},
                              .tls_cert_file = {},
                              .tls_key_file = {},
                              .eviction = "lru",
                              .stage_timeout_s = 30,
                              .stage_share = 0.25,
                              .lease_max_s = 300,
                              .sessions_max = 1024,
                              .heat_half_life_s = 2,
                              .log_level = "info",
                              .log_format = "text",
                              .version = "fuzz",
                              .without_fencing = false});
  const auto started = server.start();
  if (!started) {
    std::fprintf(stderr, "%s\n", started.error().message.c_str());
    return 2;
  }
  std::printf("infinistore ready data=127.0.0.1:%d admin=- unix=%s pool=%llu\n",
              static_cast<int>(started.value().port), argv[1],
              static_cast<unsigned long long>(started.value().pool_bytes));
  std::fflush(stdout);
  char unused = 0;
  while (::read(STDIN_FILENO, &unused, 1) > 0) {
  }
  server.stop(infinistore::kSecond);
  return 0;
}
