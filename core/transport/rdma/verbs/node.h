#pragma once
// RdmaNode: the RDMA devices of this machine, open, as one end of connections uses them.
//
// Outlives whatever is made on its devices.  Any thread may use it.

#include <memory>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/result.h"
#include "core/transport/rdma/verbs/port.h"
#include "core/transport/rdma/verbs/verbs.h"

namespace infinistore {

class RdmaDevice {
 public:
  RdmaDevice(const Verbs& verbs, std::string name, OwnedContext context, OwnedPd pd,
             const IbvDeviceAttributes& limits)
      : verbs_(verbs),
        name_(std::move(name)),
        context_(std::move(context)),
        pd_(std::move(pd)),
        limits_(limits) {}

  const Verbs& verbs() const noexcept { return verbs_; }
  const std::string& name() const noexcept { return name_; }
  IbvContext* context() const noexcept { return context_.get(); }
  IbvPd* pd() const noexcept { return pd_.get(); }
  const IbvDeviceAttributes& limits() const noexcept { return limits_; }

  // kSetup: why not, in words, and what to do.
  Result<OwnedMr> register_memory(MutableBytes memory, int access) const;

 private:
  const Verbs& verbs_;
  std::string name_;
  OwnedContext context_;
  OwnedPd pd_;
  IbvDeviceAttributes limits_;
};

class RdmaNode {
 public:
  // Opens every device that can be.  kSetup: there is no library, or no device.
  static Result<std::unique_ptr<RdmaNode>> open();
  explicit RdmaNode(std::vector<RdmaDevice> devices) : devices_(std::move(devices)) {}

  const std::vector<RdmaDevice>& devices() const noexcept { return devices_; }
  // Asked anew: links go up and down, and addresses change.
  std::vector<PortState> ports() const;

 private:
  const std::vector<RdmaDevice> devices_;
};

// Why memory cannot be registered, from errno.
Error explain_registration(int error, std::uint64_t bytes, std::uint64_t locked_bytes_max);

// What this process may lock: RLIMIT_MEMLOCK; all bits set: any amount, by the limit or
// CAP_IPC_LOCK.
std::uint64_t locked_bytes_max();

// The address of this machine in a TCP connection, as a GID; nullopt: it is no such socket.
std::optional<Gid> local_gid(int socket) noexcept;

}  // namespace infinistore
