#pragma once
// ClientMemory: a client's memory as its devices show it to servers.
//
// A registration holds the pages that are under an address when it is made.  Memory that its owner
// may give back, and the system to somebody else under the same address, must not stay registered:
// so what is shown for a request is registered for that request.  What the client keeps alive
// stays registered until it is let go: keep(), forget().
//
// Any thread may use it.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/transport/link.h"
#include "core/transport/rdma/verbs/node.h"
#include "core/wire/exposure.h"

namespace infinistore {

class ClientMemory {
 public:
  // The owner of `memory` leaves it where it is until forget() has returned.  kInvalid: a part of
  // it is kept already.
  Error keep(MutableBytes memory);
  // Waits for nothing: what is shown of it ends its registration.
  void forget(const std::byte* base);

  // What `items` name, readable or writable over `device`; kept registrations are made when they
  // are first used.  The exposure names it on the wire; while the result lives, it is shown.
  Result<std::unique_ptr<Shown>> show(const RdmaDevice& device, std::span<const Segments> items,
                                      bool is_writable, Exposure& exposure);

  // Before its devices end.
  void clear();

 private:
  struct Kept {
    std::uint64_t bytes = 0;
    std::size_t shown = 0;  // by so many requests
    bool is_forgotten = false;
    bool is_read_only = false;
    std::map<const RdmaDevice*, OwnedMr> registered;
  };
  class Showing;

  Kept* find_locked(std::uint64_t address, std::uint64_t bytes, std::uint64_t& base)
      REQUIRES(mutex_);
  Result<IbvMr*> register_kept_locked(Kept& kept, std::uint64_t base, const RdmaDevice& device,
                                      bool is_writable) REQUIRES(mutex_);
  void let_go(std::uint64_t base);

  Mutex mutex_;
  std::map<std::uint64_t, Kept> kept_ GUARDED_BY(mutex_);  // by base
};

}  // namespace infinistore
