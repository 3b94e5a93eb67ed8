#pragma once
// Answers: what a server says on one connection, and whether it may say that.

#include <sys/socket.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fd.h"
#include "core/wire/codec.h"
#include "core/wire/frame.h"
#include "tests/fuzz/live/figures.h"

namespace infinistore::fuzz {

// A request that was sent, and how far its answer has come.
struct Asked {
  Opcode opcode = Opcode::kPing;
  std::size_t count = 0;                  // of keys: outcomes in the answer
  WireRanges ranges = {};                 // PUT
  bool may_wait = false;                  // GET, SUSPECT: others' answers may come first
  bool is_granted = false;                // PUT
  std::vector<std::size_t> granted = {};  // the items to fill
};

class Answers {
 public:
  Answers(int socket, bool shared_memory, Figures& figures)
      : socket_(socket), shared_memory_(shared_memory), figures_(figures) {}

  void ask(std::uint64_t request_id, Asked asked) { asked_[request_id] = std::move(asked); }
  // From now on anything well-formed may come: what was sent is not known to be this or that.
  void expect_anything() { is_strict_ = false; }

  // Reads once, waiting at most so long.  False: nothing came, or the end.
  bool read(int wait_ms);
  bool is_ended() const noexcept { return is_ended_; }
  bool was_reset() const noexcept { return was_reset_; }
  std::optional<Code> refusal() const noexcept { return refusal_; }  // ERROR of the connection

  bool is_answered(std::uint64_t request_id) const { return !asked_.contains(request_id); }
  bool is_open(std::uint64_t request_id) const;  // a PUT that waits for FILL
  // Throws if anything before this request, itself answered, should have been answered too.
  void check_all_before(std::uint64_t request_id) const;

  // Requests that have been granted, not yet filled.
  std::vector<std::uint64_t> grants;
  std::map<std::uint64_t, Asked>& asked() { return asked_; }
  std::vector<std::uint64_t> done_due;  // DATA with extents
  std::vector<std::uint64_t> leases;
  std::optional<Nonce> nonce;
  std::string unix_path;

 private:
  void take_frames();
  void take(const FrameHeader& header, Bytes body);
  void take_welcome(Bytes body);
  void take_grant(std::uint64_t request_id, Asked& asked, Bytes body);
  void take_error(const FrameHeader& header, Bytes body);
  void take_answer(const FrameHeader& header, Asked& asked, Bytes body);
  void close_fds(msghdr& message);

  int socket_;
  bool shared_memory_;
  Figures& figures_;
  std::vector<std::byte> buffer_ = {};
  std::uint64_t payload_left_ = 0;
  std::uint64_t region_bytes_received_ = 0;
  std::size_t fds_received_ = 0;
  std::map<std::uint64_t, Asked> asked_ = {};
  std::optional<Code> refusal_ = {};
  bool is_strict_ = true;
  bool is_ended_ = false;
  bool was_reset_ = false;
};

}  // namespace infinistore::fuzz
