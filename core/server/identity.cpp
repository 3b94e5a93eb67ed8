#include <sys/random.h>

#include <cerrno>
#include <system_error>

#include "core/server/context.h"
#include "core/transport/boot_id.h"

namespace infinistore {
namespace {

void fill_random(void* data, std::size_t bytes) {
  // Up to 256 bytes come whole, or not at all before the system has gathered its first randomness.
  if (::getrandom(data, bytes, 0) != static_cast<ssize_t>(bytes)) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
}

}  // namespace

Identity make_identity() {
  Identity identity;
  fill_random(&identity.incarnation, sizeof identity.incarnation);
  fill_random(identity.nonce.data(), identity.nonce.size());
  fill_random(&identity.secret, sizeof identity.secret);
  identity.boot_id = read_boot_id();
  return identity;
}

}  // namespace infinistore
