#pragma once
// hold_off_forks(): what fork() waits for, since a library takes locks of its own meanwhile, which
// a child born then would find taken for ever.
//
//   const auto hold = hold_off_forks();  ::getaddrinfo(...);
//
// It waits half a second at most: what takes longer waits for others, and holds no such lock.

#include <shared_mutex>

namespace infinistore {

std::shared_lock<std::shared_timed_mutex> hold_off_forks();

}  // namespace infinistore
