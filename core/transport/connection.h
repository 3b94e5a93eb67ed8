#pragma once
// Connection: the server's half of one client's connection, whatever carries it.
//
// The server drives every copy: pull() offers places and learns when they hold the client's bytes,
// push() offers found bytes and learns when nobody reads them any more.  Session code never asks
// which transport it has:
//
//   tcp    pull reads FILL's payload from the socket into the extents; push is DATA's payload
//   shm    pull/push name the extents, the client copies, and says so by FILL or DONE
//   rdma   the server's device READs and WRITEs memory that FILL or GET has exposed; what exposes
//          none goes as over TCP
//
// Belongs to the thread of its poller.  The owner is never called from inside a call it made, and
// destroys the connection only from outside of its callbacks.

#include <cstdint>
#include <memory>
#include <span>

#include "core/base/bytes.h"
#include "core/base/fd.h"
#include "core/base/poller.h"
#include "core/base/result.h"
#include "core/memory/pool.h"
#include "core/transport/payload.h"
#include "core/wire/codec.h"
#include "core/wire/exposure.h"
#include "core/wire/frame.h"

namespace infinistore {

class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;

  // A frame that is not the transport's own (FILL, DONE, GOODBYE are); `body` is gone on return.
  virtual void on_request(const FrameHeader& header, Bytes body) = 0;
  // The end of a pull: kOk and a checksum for each target, or kCancelled and none.
  virtual void on_pulled(std::uint64_t request_id, Code outcome,
                         std::span<const std::uint64_t> checksums) = 0;
  virtual void on_pushed(std::uint64_t request_id) = 0;  // the sources may be let go
  virtual void on_late() = 0;  // word of a pull or push that is not open: ignored, only counted
  virtual void on_violation(const char* what) = 0;   // of the protocol; the owner calls refuse()
  virtual void on_failure(const Error& reason) = 0;  // of the way of bulk bytes; likewise
  virtual void on_close(const Error& reason) = 0;    // once, and the last call
};

// What one GRANT or DATA can name.
struct ReplyLimits {
  std::uint64_t payload_bytes = 0;  // of all items together
  bool has_extents = false;         // each item's extents stand in the body
};

class Connection {
 public:
  virtual ~Connection() = default;

  // All of these do nothing after the end, and end the connection if the peer reads too slowly.
  // welcome() adds what the transport hands over: nothing, or the pool's regions.
  virtual void welcome(std::uint64_t request_id, Welcome welcome) = 0;
  virtual void send(Opcode opcode, std::uint64_t request_id, Body body) = 0;
  // At least one outcome is kOk; extents are those of the item's range, and stay the caller's until
  // on_pulled() or on_pushed(), or after the end until the fence.
  virtual void pull(std::uint64_t request_id, GrantReply grant) = 0;
  // kLater: on_pushed() comes.  `takes_copy`: few bytes may come as payload whatever the transport.
  virtual Moved push(std::uint64_t request_id, DataReply data, bool takes_copy) = 0;

  // ATTACH: the client's ends of queue pairs.  Answers ATTACHED, or ERROR for the request.
  virtual void attach(std::uint64_t request_id, const Endpoints& client) = 0;

  // ERROR to the peer, then the end.  Nothing that it sends meanwhile is heard.
  virtual void refuse(const Error& reason) = 0;
  virtual void close(Error reason) = 0;

  // Delivers an end that happened inside one of the owner's own calls; after calling the connection
  // outside of its callbacks, the owner's thread calls this.
  virtual void deliver() = 0;

  virtual ReplyLimits limits() const noexcept = 0;

  // Whether the peer owes something that holds memory, and the bytes moved so far: no progress for
  // long means that it is stuck.
  virtual bool awaits_peer() const noexcept = 0;
  virtual std::uint64_t moved_bytes() const noexcept = 0;

  // After on_close(): empty if no extent of an open pull can be written any more, else a descriptor
  // that polls readable once that is so.
  virtual UniqueFd take_fence() noexcept = 0;
};

}  // namespace infinistore
