#include "core/transport/stream.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/check.h"
#include "core/base/limits.h"

namespace infinistore {
namespace {

constexpr std::size_t kBufferBytes = 64 * 1024;  // holds many small frames; grows for a long body
constexpr std::size_t kPiecesAtOnce = 256;
constexpr std::size_t kFdsAtOnce = kRegionsMax;
// One turn moves at most so much before other connections of the thread get theirs.
constexpr std::size_t kTurnBytes = 4u << 20;

using FdRoom = std::array<std::byte, CMSG_SPACE(sizeof(int) * kFdsAtOnce)>;

void add_fds(msghdr& message, FdRoom& room, std::span<const int> fds) noexcept {
  message.msg_control = room.data();
  message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  auto* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(part), fds.data(), fds.size_bytes());
}

}  // namespace

Stream::Stream(UniqueFd socket, Poller& poller, StreamOwner& owner, std::unique_ptr<Tls> tls)
    : socket_(std::move(socket)),
      tls_(std::move(tls)),
      poller_(poller),
      owner_(owner),
      buffer_(kBufferBytes) {
  interest_ = EPOLLIN;
  if (!poller_.add(socket_.get(), interest_, *this)) {
    fail(Code::kSetup, "the system has no room to watch another descriptor");
  }
  if (tls_ && tls_->has_more()) poller_.again(*this);
}

Stream::~Stream() {
  if (socket_) poller_.remove(socket_.get(), *this);
}

Code Stream::send(Opcode opcode, std::uint64_t request_id, std::vector<std::byte> body,
                  std::uint16_t flags, Payload* payload, std::uint64_t payload_bytes) {
  if (!socket_ || is_close_due_ || closes_after_sending_) return Code::kClosed;
  if (is_mute_) return Code::kOk;  // as all that is queued when the end comes
  if (queued_bytes_ + body.size() > kSendQueueBytesMax) return Code::kOverloaded;
  const std::uint64_t copied_bytes = payload == nullptr ? payload_bytes : 0;
  KV_CHECK(copied_bytes <= body.size() && body.size() - copied_bytes <= kBodyBytesMax &&
           payload_bytes <= kPayloadBytesMax);
  const auto summed = Bytes(body).first(body.size() - copied_bytes);
  const auto header = encode_header({.opcode = opcode,
                                     .flags = flags,
                                     .request_id = request_id,
                                     .body_bytes = static_cast<std::uint32_t>(summed.size()),
                                     .payload_bytes = payload_bytes},
                                    summed);
  body.insert(body.begin(), header.begin(), header.end());
  queued_bytes_ += body.size();
  outgoing_.push_back({.bytes = std::move(body),
                       .sent = 0,
                       .payload = payload_bytes > 0 ? payload : nullptr,
                       .payload_left = payload_bytes - copied_bytes,
                       .request_id = request_id,
                       .fds = std::move(fds_)});
  fds_.clear();
  // Small frames leave at once: a wake-up through the poller would cost more than the call.  What
  // has a payload of its own waits for the poller, since on_sent() must not be called from here.
  if (outgoing_.size() == 1 && payload_bytes == copied_bytes) write_ready();
  update_interest();
  return Code::kOk;
}

void Stream::close_after_sending(Error reason) {
  if (!socket_ || is_close_due_) return;
  closes_after_sending_ = true;
  reason_ = std::move(reason);
  if (outgoing_.empty()) finish();
}

void Stream::part_after_sending(Error reason) {
  parts_ = true;
  close_after_sending(std::move(reason));
}

// All has been sent.
void Stream::finish() {
  if (!parts_) {
    close(std::move(reason_));
  } else if (!has_parted_) {
    has_parted_ = true;
    if (tls_) tls_->say_end();
    ::shutdown(socket_.get(), SHUT_WR);
  }
}

void Stream::close(Error reason) {
  if (is_close_due_ || !socket_) return;
  if (tls_ && !has_parted_) tls_->say_end();
  poller_.remove(socket_.get(), *this);
  socket_.reset();
  outgoing_.clear();
  queued_bytes_ = 0;
  incoming_ = nullptr;
  is_close_due_ = true;
  reason_ = std::move(reason);
  poller_.wake();  // the loop comes round and calls deliver()
}

bool Stream::deliver() {
  if (is_mute_ && socket_) {
    if (!is_paused_) read_ready();
    if (socket_) fail(Code::kDisconnected, "the peer closed the connection");
  }
  if (is_resumed_ && socket_ && !is_paused_) {
    is_resumed_ = false;
    consume_buffer();
  }
  if (is_close_due_ && !is_close_told_) {
    is_close_told_ = true;
    owner_.on_close(reason_);
  }
  return is_close_told_;
}

bool Stream::peer_has_closed() const noexcept {
  pollfd socket{.fd = socket_.get(), .events = 0, .revents = 0};
  return ::poll(&socket, 1, 0) > 0 && (socket.revents & (POLLHUP | POLLERR)) != 0;
}

void Stream::pause_reading(bool paused) {
  if (is_paused_ == paused || !socket_) return;
  is_paused_ = paused;
  update_interest();
  if (!paused) {
    is_resumed_ = true;
    poller_.wake();
    if (tls_ && tls_->has_more()) poller_.again(*this);
  }
}

void Stream::on_ready(std::uint32_t events) {
  // TLS may need the other direction to go on with this one.
  const bool reads_by_room = tls_ && tls_->receive_awaits_room();
  if (tls_ && tls_->send_awaits_bytes() && (events & EPOLLIN) != 0) events |= EPOLLOUT;
  if (reads_by_room && (events & EPOLLOUT) != 0) events |= EPOLLIN;
  if ((events & EPOLLOUT) != 0) write_ready();
  if (socket_ && !is_paused_ && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    read_ready();
  } else if (socket_ && (events & (EPOLLHUP | EPOLLERR)) != 0) {
    fail(Code::kDisconnected, "the peer closed the connection");
  }
  if (socket_) update_interest();
  deliver();  // this is no call of the owner's
}

void Stream::fail(Code code, const char* what) {
  close(has_parted_ ? std::move(reason_) : Error{code, what});
}

void Stream::update_interest() {
  if (!socket_) return;
  std::uint32_t wanted = 0;
  const bool sends_by_bytes = tls_ && tls_->send_awaits_bytes();
  const bool reads_by_room = tls_ && tls_->receive_awaits_room();
  if (!is_paused_ || sends_by_bytes) wanted |= EPOLLIN;
  if ((!outgoing_.empty() && !sends_by_bytes) || (reads_by_room && !is_paused_)) {
    wanted |= EPOLLOUT;
  }
  if (wanted == interest_) return;
  interest_ = wanted;
  if (is_watched_) poller_.change(socket_.get(), interest_, *this);
}

void Stream::watch(bool by_poller) {
  if (is_watched_ == by_poller) return;
  is_watched_ = by_poller;
  if (socket_) poller_.change(socket_.get(), by_poller ? interest_ : 0, *this);
}

// ---- receiving ----

void Stream::read_ready() {
  const auto before = moved_bytes_;
  while (socket_ && !is_paused_ && moved_bytes_ - before < kTurnBytes) {
    bool has_more = false;
    if (!read_some(has_more) || !consume_buffer()) return;
    // A small frame, and nothing behind it: the call that would say so is saved.  More of a payload
    // comes while this is read.
    if (!has_more && incoming_ == nullptr && !(tls_ && tls_->has_more())) return;
  }
  // What TLS has taken from the socket already the poller knows nothing of.
  if (socket_ && tls_ && tls_->has_more()) poller_.again(*this);
}

// Reads once: into the payload's place while there is one, else into the buffer.  False: nothing
// more now, or the end; `has_more`: there was as much as it asked for.
bool Stream::read_some(bool& has_more) {
  std::array<iovec, kPiecesAtOnce + 1> pieces{};
  std::size_t count = 0;
  std::uint64_t payload_room = 0;
  if (incoming_ != nullptr) {
    const std::size_t given = incoming_->peek(std::span(pieces).first(kPiecesAtOnce));
    for (std::size_t i = 0; i < given && payload_room < incoming_left_; ++i) {
      pieces[i].iov_len = static_cast<std::size_t>(
          std::min<std::uint64_t>(pieces[i].iov_len, incoming_left_ - payload_room));
      payload_room += pieces[i].iov_len;
      ++count;
    }
    KV_CHECK(payload_room > 0);
  }
  // What follows the payload goes to the buffer in the same call.
  if (incoming_ == nullptr || payload_room == incoming_left_) {
    KV_CHECK(buffered_end_ < buffer_.size());
    pieces[count++] = {buffer_.data() + buffered_end_, buffer_.size() - buffered_end_};
  }
  std::size_t asked = 0;
  for (std::size_t i = 0; i < count; ++i) asked += pieces[i].iov_len;
  const std::ptrdiff_t got = receive(pieces.data(), count);
  has_more = got == static_cast<std::ptrdiff_t>(asked);
  if (got <= 0) return read_failed(got);
  moved_bytes_ += static_cast<std::uint64_t>(got);
  const auto to_payload = std::min<std::uint64_t>(static_cast<std::uint64_t>(got), payload_room);
  buffered_end_ += static_cast<std::size_t>(static_cast<std::uint64_t>(got) - to_payload);
  if (incoming_ != nullptr) {
    incoming_left_ -= to_payload;
    incoming_->advance(static_cast<std::size_t>(to_payload));
    if (incoming_left_ == 0) {
      incoming_ = nullptr;
      owner_.on_payload(header_);
    }
  }
  return socket_ ? true : false;
}

bool Stream::read_failed(std::ptrdiff_t got) {
  if (got == 0) {
    fail(Code::kDisconnected, "the peer closed the connection");
  } else if (tls_ && tls_->met_plain()) {
    tls_.reset();
    refuse_garbage(Garbage::kPlain);
  } else if (tls_ && !tls_->failure().empty()) {
    fail(Code::kProtocol, tls_->failure().c_str());
  } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    fail(Code::kDisconnected, std::strerror(errno));
  }
  return false;
}

std::ptrdiff_t Stream::receive(iovec* pieces, std::size_t count) {
  if (tls_) return tls_->receive(std::span(pieces, count));
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  alignas(cmsghdr) FdRoom control{};
  if (expects_fds_) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  const auto got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  if (got >= 0 && expects_fds_) keep_fds(message);
  return got;
}

void Stream::keep_fds(msghdr& message) {
  for (auto* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
      received_fds_.emplace_back(fd);
    }
  }
}

// Cuts frames out of the buffer until it holds less than one.  False: the connection ended.
bool Stream::consume_buffer() {
  if (is_deaf_) buffered_begin_ = buffered_end_ = 0;
  while (socket_ && !is_paused_ && buffered_end_ > buffered_begin_) {
    if (!(incoming_ != nullptr ? receive_payload_from_buffer() : consume_frame())) break;
  }
  if (!socket_) return false;
  std::memmove(buffer_.data(), buffer_.data() + buffered_begin_, buffered_end_ - buffered_begin_);
  buffered_end_ -= buffered_begin_;
  buffered_begin_ = 0;
  if (buffered_end_ == 0 && buffer_.size() > kBufferBytes) {
    buffer_.resize(kBufferBytes);
    buffer_.shrink_to_fit();
  }
  return true;
}

// False: the buffer holds less than a frame, or the connection ends.
bool Stream::consume_frame() {
  const std::size_t have = buffered_end_ - buffered_begin_;
  if (have < kHeaderBytes) return false;
  const auto raw = Bytes(buffer_).subspan(buffered_begin_, kHeaderBytes);
  const auto header = decode_header(raw);
  if (!header) {
    return refuse_garbage(!tls_ && Tls::begins_handshake(raw) ? Garbage::kTls : Garbage::kNoFrame);
  }
  const std::size_t frame_bytes = kHeaderBytes + header->body_bytes;
  if (have < frame_bytes) {
    if (frame_bytes > buffer_.size()) buffer_.resize(frame_bytes);
    return false;
  }
  const auto body = Bytes(buffer_).subspan(buffered_begin_ + kHeaderBytes, header->body_bytes);
  if (!is_intact(raw, body)) return refuse_garbage(Garbage::kNoFrame);
  buffered_begin_ += frame_bytes;
  Payload* const place = owner_.on_frame(*header, body);
  if (!socket_) return false;
  if (header->payload_bytes == 0) return true;
  if (place == nullptr) {
    fail(Code::kProtocol, "the peer sent a payload that nobody asked for");
    return false;
  }
  header_ = *header;
  incoming_ = place;
  incoming_left_ = header->payload_bytes;
  return true;
}

// What came is no frame, or its bits were changed on the way: where the next begins is unknown.
bool Stream::refuse_garbage(Garbage what) {
  is_deaf_ = true;
  buffered_begin_ = buffered_end_ = 0;
  owner_.on_garbage(what);
  if (!closes_after_sending_) {
    fail(Code::kProtocol, "the peer sent bytes that are no frame of this protocol");
  }
  return false;
}

// The first bytes of a payload that came together with its frame.
bool Stream::receive_payload_from_buffer() {
  std::array<iovec, 1> piece{};
  const std::size_t given = incoming_->peek(piece);
  KV_CHECK(given == 1 && piece[0].iov_len > 0);
  const std::size_t have = buffered_end_ - buffered_begin_;
  const auto step =
      static_cast<std::size_t>(std::min<std::uint64_t>({piece[0].iov_len, have, incoming_left_}));
  std::memcpy(piece[0].iov_base, buffer_.data() + buffered_begin_, step);
  buffered_begin_ += step;
  incoming_left_ -= step;
  incoming_->advance(step);
  if (incoming_left_ == 0) {
    incoming_ = nullptr;
    owner_.on_payload(header_);
  }
  return static_cast<bool>(socket_);
}

// ---- sending ----

void Stream::write_ready() {
  const auto before = moved_bytes_;
  while (socket_ && !outgoing_.empty() && moved_bytes_ - before < kTurnBytes) {
    const std::ptrdiff_t put = transmit(outgoing_.front());
    if (put < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
      fall_mute(std::strerror(errno));
      return;
    }
    moved_bytes_ += static_cast<std::uint64_t>(put);
    finish_sent();
  }
  if (socket_ && outgoing_.empty() && closes_after_sending_) finish();
}

// The peer has ended, and nothing reaches it any more.  What it said before is worth hearing: that
// a payload is whole, that it writes no more, or why it ended.  deliver() reads it, and closes.
void Stream::fall_mute(const char* what) {
  if (closes_after_sending_ || is_deaf_) {
    fail(Code::kDisconnected, what);
    return;
  }
  is_mute_ = true;
  outgoing_.clear();
  queued_bytes_ = 0;
  poller_.wake();
}

std::ptrdiff_t Stream::transmit(Outgoing& first) {
  std::array<iovec, kPiecesAtOnce> pieces{};
  std::size_t count = 0;
  const std::size_t own = first.bytes.size() - first.sent;
  if (own > 0) pieces[count++] = {first.bytes.data() + first.sent, own};
  if (first.payload != nullptr) {
    count += first.payload->peek(std::span(pieces).subspan(count));
  } else {
    // Small frames that queued up behind leave together.
    for (std::size_t i = 1; i < outgoing_.size() && count < pieces.size(); ++i) {
      auto& next = outgoing_[i];
      if (!next.fds.empty()) break;
      pieces[count++] = {next.bytes.data(), next.bytes.size()};
      if (next.payload != nullptr) break;
    }
  }
  const auto put = transmit(first, std::span(pieces).first(count));
  if (put > 0) take_sent(static_cast<std::size_t>(put));
  return put;
}

std::ptrdiff_t Stream::transmit(Outgoing& first, std::span<iovec> pieces) {
  if (tls_) return tls_->send(pieces);
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  alignas(cmsghdr) FdRoom control{};
  if (!first.fds.empty() && first.sent == 0) add_fds(message, control, first.fds);
  return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
}

// Takes what left from the frames it was of.
void Stream::take_sent(std::size_t left) {
  for (auto& frame : outgoing_) {
    const std::size_t step = std::min(left, frame.bytes.size() - frame.sent);
    frame.sent += step;
    left -= step;
    if (frame.payload != nullptr && left > 0) {
      KV_CHECK(left <= frame.payload_left);
      frame.payload->advance(left);
      frame.payload_left -= left;
      left = 0;
    }
    if (left == 0) break;
  }
}

void Stream::finish_sent() {
  while (socket_ && !outgoing_.empty()) {
    const auto& first = outgoing_.front();
    if (first.sent < first.bytes.size() || first.payload_left > 0) return;
    queued_bytes_ -= first.bytes.size();
    const bool had_payload = first.payload != nullptr;
    const auto request_id = first.request_id;
    outgoing_.pop_front();
    if (had_payload) owner_.on_sent(request_id);
  }
}

}  // namespace infinistore
