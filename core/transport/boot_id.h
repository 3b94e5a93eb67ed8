#pragma once
// The boot id: equal for all processes of one running kernel, containers included.

#include "core/wire/message.h"

namespace infinistore {

// The 16 bytes of /proc/sys/kernel/random/boot_id, in the order they are written; zeros: unknown.
BootId read_boot_id() noexcept;

}  // namespace infinistore
