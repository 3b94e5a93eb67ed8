#include "core/transport/rdma/verbs/work_status.h"

#include <array>
#include <string>

namespace infinistore {
namespace {

struct Meaning {
  Code code;
  const char* what;
};

constexpr const char* kOwnFault = "; this is a fault of InfiniStore or of the device's driver";

// By number of the status, as in verbs.h.
constexpr std::array<Meaning, 24> kMeanings = {{
    {Code::kOk, "done"},
    {Code::kSetup, "more bytes were moved at once than the device allows (local length error)"},
    {Code::kSetup, "the device could not carry out the order (local queue pair operation error)"},
    {Code::kSetup, "the device refused its context (local end-to-end context error)"},
    {Code::kSetup, "the pool's memory is not registered as it was said (local protection error)"},
    {Code::kDisconnected, "the queue pair had failed before (flushed)"},
    {Code::kSetup, "a memory window was refused (memory window bind error)"},
    {Code::kDisconnected, "the client's device answered what it should not (bad response)"},
    {Code::kSetup, "the pool's memory could not be written (local access error)"},
    {Code::kDisconnected,
     "the client's device took the order for malformed (remote invalid request); do both ends run "
     "the same version of InfiniStore, with equal MTUs on the way?"},
    {Code::kInvalid,
     "the client's memory is not registered any more, or not so much of it (remote access error); "
     "memory must stay mapped until the batch is done"},
    {Code::kDisconnected,
     "the client's device could not carry out the order (remote operation error); look at its "
     "host's dmesg"},
    {Code::kDisconnected,
     "the client's device does not answer (retries exceeded): its process or host is gone, a link "
     "is down, or packets are lost; check the ports (infinistore doctor) and, for RoCE, flow "
     "control on the way"},
    {Code::kDisconnected, "the client's device was not ready again and again (receiver not ready)"},
    {Code::kSetup, "reliable datagrams do not fit together (domain violation)"},
    {Code::kDisconnected, "the client's device refused an RDMA READ (remote invalid READ request)"},
    {Code::kDisconnected, "the client's device gave the order up (remote aborted)"},
    {Code::kSetup, "the device does not know its context (invalid context number)"},
    {Code::kSetup, "the device's context is in no state to work (invalid context state)"},
    {Code::kDisconnected, "the device has failed (fatal); look at dmesg"},
    {Code::kDisconnected, "the client's device did not answer in time (response timeout)"},
    {Code::kDisconnected, "the device reports an error of its own (general error); look at dmesg"},
    {Code::kSetup, "tag matching failed"},
    {Code::kSetup, "tag matching is incomplete"},
}};

}  // namespace

Error describe_work_status(int status, std::uint32_t vendor_error) {
  const bool is_known = status >= 0 && static_cast<std::size_t>(status) < kMeanings.size();
  const Meaning meaning = is_known ? kMeanings[static_cast<std::size_t>(status)]
                                   : Meaning{Code::kDisconnected, "an unknown error"};
  std::string text = std::string("RDMA: ") + meaning.what;
  if (meaning.code == Code::kSetup) text += kOwnFault;
  text += " [status " + std::to_string(status) + ", vendor's " + std::to_string(vendor_error) + "]";
  return {meaning.code, text};
}

}  // namespace infinistore
