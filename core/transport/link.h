#pragma once
// Link: the client's half of a transport: how the bulk bytes of puts and gets travel.
//
//   tcp    fill() sends FILL with the segments as payload; receive() says where DATA's payload goes
//   shm    fill() and receive() copy between segments and the server's pool at once
//   rdma   fill() sends FILL with the places of the segments, and the server's device reads them;
//          expose() does the same for what its device shall write
//
// Segments of a GPU's memory are moved by its kernel, while the thread does other things: over
// shared memory straight to and from the pool, else by way of pinned memory of the request.
//
// Belongs to the thread of its stream.  A transfer's segments are touched only from fill() or
// receive() on, and until it has ended: then, and only then, may the caller's memory be given back.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "core/device/gpu.h"
#include "core/device/tile_copy.h"
#include "core/memory/extent.h"
#include "core/transport/gpu_copies.h"
#include "core/transport/payload.h"
#include "core/wire/codec.h"

namespace infinistore {

// The caller's memory for one range of a value: segments of one length, in order.
struct Segments {
  std::span<const std::uint64_t> addresses;
  std::uint64_t segment_bytes = 0;
  std::uint64_t position = 0;             // of the range's first byte in its value
  Gpu* gpu = nullptr;                     // whose memory it is; nullptr: the host's
  Mover mover = Mover::kMultiprocessors;  // of a GPU's memory to the host

  std::uint64_t bytes() const noexcept { return addresses.size() * segment_bytes; }
  MutableBytes segment(std::size_t index) const noexcept {
    return {reinterpret_cast<std::byte*>(addresses[index]), segment_bytes};
  }
};

// Memory that the server's device may reach, as long as this lives.
class Shown {
 public:
  virtual ~Shown() = default;
};

// The bulk bytes of one request on their way.  Owned by the request; must outlive its end.
struct Transfer {
  std::uint64_t request_id = 0;
  std::vector<Segments> items;
  std::vector<Extents> extents;          // shared memory: of each item
  std::vector<std::uint64_t> checksums;  // of each item: computed by fill(), compared by receive()
  std::vector<bool> is_corrupt;          // of each item, set by receive()
  std::unique_ptr<Payload> payload;      // the link's, while the bytes are under way
  std::unique_ptr<Shown> shown;          // RDMA: the server moves them, until it has answered
  bool is_placed = false;                // RDMA: DATA says that it has
  std::unique_ptr<TileCopy> copy;        // a GPU's, likewise
  PinnedMemory staging;                  // between a GPU and a socket: the items, one by one
  std::vector<std::uint64_t> staged;     // where each item is in it
  std::vector<Segments> targets;         // where the items go after it
  bool is_let_go = false;                // shared memory: the server has heard DONE

  Gpu* gpu() const noexcept { return items.empty() ? nullptr : items.front().gpu; }
};

class Link {
 public:
  virtual ~Link() = default;

  virtual bool shares_memory() const noexcept = 0;
  virtual bool exposes() const noexcept { return false; }  // expose() may return something

  // Of a get that is about to be asked for: shows where its items go.  What it returns, if
  // anything, is GET's body from now on, and the server may write there until it has answered.
  virtual Result<Body> expose(Transfer&, Bytes) { return Body{}; }

  // Moves the granted items to the server, and sends FILL.  kLater: the transfer ends with the
  // stream's on_sent(), or with the stream; if transfer.copy is set, filled() comes before; if
  // transfer.shown is, it ends with RESULT.  An
  // error ends the connection, save kSetup: a GPU failed before anything was sent.
  virtual Result<Moved> fill(Transfer& transfer) = 0;
  // Goes on with fill() after the copy by a GPU.
  virtual Result<Moved> filled(Transfer& transfer) = 0;

  // Takes the found items.  kLater: transfer.payload is where DATA's payload goes; on shared memory
  // if there are no extents; or transfer.copy is set, and received() comes next.
  virtual Result<Moved> receive(Transfer& transfer) = 0;
  // Goes on with receive() after the payload; kLater as there.
  virtual Result<Moved> unpack(Transfer& transfer) = 0;
  // Ends receive() after the copy by a GPU.
  virtual Result<Moved> received(Transfer& transfer) = 0;

  // Shows the server's memory to a GPU at once; what is not shown is when it is used.
  virtual Error prepare(const Gpu& gpu) = 0;
  // Those on their way.
  virtual GpuCopies& copies() noexcept = 0;

  // The caller wants nothing more of a DATA with extents: lets the server's memory go.
  virtual void refuse(std::uint64_t request_id) = 0;

  // From now on a transfer of receive() puts what still comes nowhere.
  virtual void drop(Transfer& transfer) noexcept = 0;
};

}  // namespace infinistore
