#include "core/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace infinistore {

void check_failed(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "infinistore: invariant broken: %s (%s:%d)\n", condition, file, line);
  std::abort();
}

}  // namespace infinistore
