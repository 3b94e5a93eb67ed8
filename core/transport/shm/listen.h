#pragma once
// The listening unix socket, for the owner of its file only.

#include <string>

#include "core/base/fd.h"
#include "core/base/result.h"

namespace infinistore {

// Binds `path` with mode 0600, over a socket that a dead server left there.  kSetup names what is
// wrong and the remedy.  The file is the caller's to remove.
Result<UniqueFd> listen_unix(const std::string& path);

}  // namespace infinistore
