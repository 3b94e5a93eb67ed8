#pragma once
// Stream: frames and payloads over one connected, non-blocking stream socket (TCP or unix), as they
// are or by TLS.
//
// Used by both ends of every transport; the shared-memory one never sends a payload.  Belongs to
// the thread of its poller.  The owner is never called from inside a call it made, and may destroy
// the stream only from outside of its callbacks; close() is safe anywhere.

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/fd.h"
#include "core/base/poller.h"
#include "core/base/result.h"
#include "core/transport/payload.h"
#include "core/transport/tls/tls.h"
#include "core/wire/frame.h"

namespace infinistore {

enum class Garbage {
  kNoFrame,
  kTls,    // a handshake of TLS, on a stream that speaks none
  kPlain,  // no TLS, on a stream that speaks it; what is said to the peer is said in plain now
};

class StreamOwner {
 public:
  virtual ~StreamOwner() = default;

  // One frame without its payload; `body` is gone on return.  If header.payload_bytes > 0 the
  // answer is where it goes (it must outlive on_payload() and the stream's close); nullptr: the
  // owner refuses the frame, and the stream closes.
  virtual Payload* on_frame(const FrameHeader& header, Bytes body) = 0;
  // What came is no frame, and nothing that follows will be told.  An owner that does not close the
  // stream after saying so to the peer leaves that to the stream, which does it at once.
  virtual void on_garbage(Garbage) {}
  virtual void on_payload(const FrameHeader& header) = 0;  // all of it has been received
  virtual void on_sent(std::uint64_t request_id) = 0;      // a payload has left, all of it
  virtual void on_close(const Error& reason) = 0;          // once, and the last call
};

class Stream final : public PollTarget {
 public:
  // `tls`: of that socket; nullptr: the bytes travel as they are.
  Stream(UniqueFd socket, Poller& poller, StreamOwner& owner, std::unique_ptr<Tls> tls = nullptr);
  ~Stream() override;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Queues a frame.  `payload`, if any, gives exactly `payload_bytes` and must live until on_sent()
  // or on_close(); without one the payload is the end of `body`.  kOverloaded, and nothing queued,
  // if the peer reads too slowly; kClosed after the end.
  Code send(Opcode opcode, std::uint64_t request_id, std::vector<std::byte> body,
            std::uint16_t flags = 0, Payload* payload = nullptr, std::uint64_t payload_bytes = 0);

  // The next frame queued also carries these descriptors (unix sockets only).
  void attach_fds(std::vector<int> fds) { fds_ = std::move(fds); }
  // Descriptors that came with frames so far.
  std::vector<UniqueFd> take_fds() { return std::move(received_fds_); }
  void expect_fds() { expects_fds_ = true; }

  // Closes once everything queued has left, or at once if nothing is.
  void close_after_sending(Error reason);
  // The same, and takes leave: says the end, and takes what still comes until the peer ends too.  A
  // close with bytes unread would take from him what was sent last.  The owner limits the time.
  void part_after_sending(Error reason);
  // Closes now.  on_close() follows from the poller, or from the destructor never.
  void close(Error reason);

  // Stops or resumes reading: back-pressure.
  void pause_reading(bool paused);

  // Whether the poller watches the socket.  If not, somebody else waits for interest() at fd() and
  // calls on_ready().  The poller's wake-ups by then are as few as the system allows: for errors.
  void watch(bool by_poller);
  std::uint32_t interest() const noexcept { return interest_; }  // EPOLLIN, EPOLLOUT

  bool is_open() const noexcept { return static_cast<bool>(socket_); }
  // Whether the peer has closed by now, whatever is left to be read of it.  Unix sockets only.
  bool peer_has_closed() const noexcept;
  int fd() const noexcept { return socket_.get(); }
  // Bytes moved in either direction so far: progress, for deadlines.
  std::uint64_t moved_bytes() const noexcept { return moved_bytes_; }
  std::size_t queued_bytes() const noexcept { return queued_bytes_; }

  void on_ready(std::uint32_t events) override;
  // What could not be told from inside the owner's own calls: frames that waited while reading was
  // paused, and the end.  The thread's loop calls it after each poll(); true once on_close() was
  // called.
  bool deliver();

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;  // header and body
    std::size_t sent = 0;
    Payload* payload = nullptr;
    std::uint64_t payload_left = 0;
    std::uint64_t request_id = 0;
    std::vector<int> fds;
  };

  void read_ready();
  bool read_some(bool& has_more);
  bool consume_buffer();
  bool consume_frame();
  bool refuse_garbage(Garbage what);
  bool read_failed(std::ptrdiff_t got);
  bool receive_payload_from_buffer();
  std::ptrdiff_t receive(iovec* pieces, std::size_t count);
  void keep_fds(msghdr& message);
  void write_ready();
  std::ptrdiff_t transmit(Outgoing& first);
  std::ptrdiff_t transmit(Outgoing& first, std::span<iovec> pieces);
  void take_sent(std::size_t left);
  void finish_sent();
  void fall_mute(const char* what);
  void update_interest();
  void finish();
  void fail(Code code, const char* what);

  UniqueFd socket_;
  std::unique_ptr<Tls> tls_;
  Poller& poller_;
  StreamOwner& owner_;

  std::vector<std::byte> buffer_;  // received, not yet consumed
  std::size_t buffered_begin_ = 0;
  std::size_t buffered_end_ = 0;
  FrameHeader header_;  // of the payload being received
  Payload* incoming_ = nullptr;
  std::uint64_t incoming_left_ = 0;
  std::vector<UniqueFd> received_fds_;
  bool expects_fds_ = false;
  bool is_paused_ = false;
  bool is_deaf_ = false;     // since what came was no frame
  bool is_mute_ = false;     // since the peer took nothing any more
  bool is_resumed_ = false;  // frames may wait in the buffer

  std::deque<Outgoing> outgoing_;
  std::size_t queued_bytes_ = 0;
  std::vector<int> fds_;
  std::uint32_t interest_ = 0;
  bool is_watched_ = true;
  std::uint64_t moved_bytes_ = 0;

  bool closes_after_sending_ = false;
  bool parts_ = false;       // ... by taking leave
  bool has_parted_ = false;  // said the end: nothing more is sent
  bool is_close_due_ = false;
  bool is_close_told_ = false;
  Error reason_;
};

}  // namespace infinistore
