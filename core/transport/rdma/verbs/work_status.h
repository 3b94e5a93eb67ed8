#pragma once
// What a device says of work that has failed, in words.

#include <cstdint>

#include "core/base/result.h"

namespace infinistore {

inline constexpr int kWorkDone = 0;
inline constexpr int kWorkFlushed = 5;  // the queue pair had failed before: others are to blame

// `status`, `vendor_error`: of a completion.  kInvalid: the request named memory that is not there;
// kDisconnected: the way to the peer failed.
Error describe_work_status(int status, std::uint32_t vendor_error);

}  // namespace infinistore
