#pragma once
// Request: one exchange of frames for a part of an operation; on its channel's thread only.
//
// A channel starts it, feeds it with what comes under its id, and destroys it after kDone or
// fail(). It ends its operation's part exactly once, as soon as the caller's memory is out of its
// hands.

#include <memory>
#include <vector>

#include "core/base/clock.h"
#include "core/client/batch.h"
#include "core/transport/link.h"
#include "core/transport/stream.h"
#include "core/wire/frame.h"

namespace infinistore {

class Request;

// What this client saw itself.  Written by channels, read by anyone.
struct ClientCounters {
  std::atomic<std::uint64_t> rdma_bytes{0};   // that servers' devices moved, of whole requests
  std::atomic<std::uint64_t> corrupt{0};      // ranges read that did not match their checksum
  std::atomic<std::uint64_t> connects{0};     // connections made
  std::atomic<std::uint64_t> disconnects{0};  // connections lost
  std::atomic<std::uint64_t> timeouts{0};     // connections given up for want of progress
  std::atomic<std::uint64_t> violations{0};   // connections ended as the server broke the protocol
};

// What a request works with while it is in flight.
struct Line {
  Stream& stream;
  Link& link;
  ClientCounters& counters;
  std::uint64_t request_id;
  std::vector<std::unique_ptr<Request>>& follow_ups;  // to be started by the same channel
};

enum class Step {
  kWait,   // for the next frame, or for bulk bytes
  kAgain,  // start() it again, under a new id, after delay()
  kDone,
};

// Requests wait in lanes, so that none stands behind one that has reason to take long.
enum class Lane { kCall, kBulk, kWaiting };
inline constexpr std::size_t kLaneCount = 3;

class Request {
 public:
  virtual ~Request() = default;

  virtual Lane lane() const noexcept = 0;
  virtual std::uint64_t put_bytes() const noexcept = 0;   // space it reserves on the server
  virtual std::uint64_t bulk_bytes() const noexcept = 0;  // that will move, for its deadline
  virtual bool uses_gpu() const noexcept = 0;             // its bulk bytes are moved by one
  virtual Nanos patience() const noexcept = 0;  // that the server may take beside all deadlines

  // Sends the first frame; kOverloaded: nothing was sent, come again; kSetup: it cannot be, and the
  // part has ended.
  virtual Code start(Line& line) = 0;
  // An error ends the connection.  `header.payload_bytes` > 0: payload() says where they go.
  virtual Result<Step> on_frame(const FrameHeader& header, Bytes body, Line& line) = 0;
  virtual Payload* payload() noexcept = 0;
  virtual Result<Step> on_moved(Line& line) = 0;   // the payload has left, or has come
  virtual Result<Step> on_copied(Line& line) = 0;  // a GPU has copied
  virtual Nanos delay() const noexcept { return 0; }

  // Of the operation whose part has not ended; 0: it has, or nobody waits for it.
  virtual std::uint64_t operation_id() const noexcept = 0;
  // The server has ended the exchange by ERROR: what was shown to it is fenced.
  virtual void on_refused() {}
  // Ends the part with `reason` now, or once its bulk bytes are fenced; the exchange goes on.
  virtual void cancel(const Error& reason, Line& line) = 0;
  // Not started, or its connection has ended.
  virtual void fail(const Error& reason) = 0;
};

std::unique_ptr<Request> make_put_request(Batch& batch, std::vector<std::uint32_t> indexes);
std::unique_ptr<Request> make_get_request(Batch& batch, std::vector<std::uint32_t> indexes);
std::unique_ptr<Request> make_call_request(Call& call);
std::unique_ptr<Request> make_call_request(std::unique_ptr<Call> call);  // nobody waits for it

}  // namespace infinistore
