#include "core/transport/tls/tls.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/transport/tls/constants.h"

namespace infinistore {
namespace {

constexpr std::size_t kRecordBytes = 16 * 1024;  // the most that one record of TLS holds

// How records of TLS begin here: a handshake's or an alert's, of version 3.
constexpr std::byte kHandshakeRecord{0x16};
constexpr std::byte kAlertRecord{0x15};
constexpr std::byte kRecordVersion{3};

bool must_wait(int error) noexcept {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

const TlsLibrary& loaded() { return *load_tls_library().value(); }  // who has a bio has it

}  // namespace

// ---- OpenSSL's way to the socket: without SIGPIPE, and with a look at the first bytes ----

const bio_method_st* Tls::socket_method(const TlsLibrary& library) {
  static const bio_method_st* const method = [&]() -> const bio_method_st* {
    bio_method_st* const made =
        library.bio_method_new(library.bio_new_index() | kBioTypeSocket, "infinistore");
    if (made == nullptr) return nullptr;
    library.bio_method_set_read(made, &Tls::read_socket);
    library.bio_method_set_write(made, &Tls::write_socket);
    library.bio_method_set_control(made, &Tls::control_socket);
    return made;
  }();
  return method;
}

int Tls::read_socket(bio_st* bio, char* into, int bytes) {
  const auto& library = loaded();
  auto& self = *static_cast<Tls*>(library.bio_data(bio));
  library.bio_clear_flags(bio, kBioFlagRead | kBioFlagWrite | kBioFlagRetry);
  // Nothing is taken that was not there at the look: the next look would be at what comes behind.
  auto got = self.has_looked_ ? 1 : self.look();
  if (self.met_plain_) return -1;
  if (got > 0) got = ::recv(self.socket_, into, static_cast<std::size_t>(bytes), 0);
  if (got == 0) self.saw_end_ = true;
  if (got >= 0) return static_cast<int>(got);
  if (must_wait(errno)) {
    library.bio_set_flags(bio, kBioFlagRead | kBioFlagRetry);
  } else {
    self.socket_errno_ = errno;
  }
  return -1;
}

int Tls::write_socket(bio_st* bio, const char* from, int bytes) {
  const auto& library = loaded();
  auto& self = *static_cast<Tls*>(library.bio_data(bio));
  library.bio_clear_flags(bio, kBioFlagRead | kBioFlagWrite | kBioFlagRetry);
  const int flags = MSG_NOSIGNAL | (self.has_more_to_send_ ? MSG_MORE : 0);
  const auto put = ::send(self.socket_, from, static_cast<std::size_t>(bytes), flags);
  if (put >= 0) return static_cast<int>(put);
  if (must_wait(errno)) {
    library.bio_set_flags(bio, kBioFlagWrite | kBioFlagRetry);
  } else {
    self.socket_errno_ = errno;
  }
  return -1;
}

long Tls::control_socket(bio_st*, int what, long, void*) {
  return what == kBioControlFlush ? 1 : 0;
}

bool Tls::begins_handshake(Bytes first) noexcept {
  return first.size() >= 2 && first[0] == kHandshakeRecord && first[1] == kRecordVersion;
}

// Once, at the first byte or two; answers as recv() does.
std::ptrdiff_t Tls::look() noexcept {
  std::array<std::byte, 2> first{};
  const auto got = ::recv(socket_, first.data(), first.size(), MSG_PEEK);
  if (got <= 0) return got;
  has_looked_ = true;
  const bool is_record = first[0] == kHandshakeRecord || first[0] == kAlertRecord;
  met_plain_ = !is_record || (got > 1 && first[1] != kRecordVersion);
  return got;
}

// ---- both ends ----

Result<std::unique_ptr<Tls>> Tls::make(const TlsLibrary& library, ssl_ctx_st* context, int socket,
                                       Side side) {
  library.error_clear();
  ssl_st* const ssl = library.ssl_new(context);
  if (ssl == nullptr) return Error{Code::kSetup, "OpenSSL fails: " + library.take_error()};
  auto tls = std::make_unique<Tls>(library, ssl, socket);
  const auto* const method = socket_method(library);
  bio_st* const bio = method == nullptr ? nullptr : library.bio_new(method);
  if (bio == nullptr) return Error{Code::kSetup, "OpenSSL fails: " + library.take_error()};
  library.bio_set_data(bio, tls.get());
  library.bio_set_init(bio, 1);
  library.ssl_set_bio(ssl, bio, bio);
  if (side == Side::kServer) {
    library.ssl_accept_state(ssl);
  } else {
    library.ssl_connect_state(ssl);
  }
  return tls;
}

Tls::~Tls() { library_.ssl_free(ssl_); }

// Of a call that did not succeed: 0, or -1 and errno.
std::ptrdiff_t Tls::understand(SslAnswer answer, bool& awaits_other, int other) {
  const int error = library_.ssl_error(ssl_, answer);
  awaits_other = error == other;
  if (error == kSslErrorWantRead || error == kSslErrorWantWrite) {
    errno = EAGAIN;
    return -1;
  }
  is_over_ = true;
  if (error == kSslErrorZeroReturn || (saw_end_ && !met_plain_)) {
    library_.error_clear();
    return 0;  // with its farewell or without: what it has not said is missed by sizes and sums
  }
  if (socket_errno_ != 0) {
    errno = socket_errno_;
    return -1;
  }
  if (failure_.empty()) {
    const auto reason = library_.take_error();
    failure_ = met_plain_ ? "the peer does not speak TLS"
                          : "TLS failed: " + (reason.empty() ? "no reason is known" : reason);
  }
  errno = EPROTO;
  return -1;
}

bool Tls::shake_hands() noexcept {
  library_.error_clear();
  const auto answer = library_.ssl_handshake(ssl_);
  if (answer == 1) {
    receive_awaits_room_ = send_awaits_bytes_ = false;
    return true;
  }
  receive_awaits_room_ = false;
  if (understand(answer, receive_awaits_room_, kSslErrorWantWrite) == 0) errno = ECONNRESET;
  send_awaits_bytes_ = !receive_awaits_room_;
  return false;
}

std::ptrdiff_t Tls::receive(std::span<const iovec> pieces) noexcept {
  const auto got = take(pieces);
  // What a send waited for may have come here: the end of the handshake, behind which the peer may
  // say nothing before it hears us.
  if (library_.ssl_is_init_finished(ssl_) != 0) send_awaits_bytes_ = false;
  return got;
}

std::ptrdiff_t Tls::take(std::span<const iovec> pieces) noexcept {
  library_.error_clear();
  receive_awaits_room_ = false;
  std::ptrdiff_t total = 0;
  for (const auto& piece : pieces) {
    for (std::size_t at = 0; at < piece.iov_len;) {
      const auto room = static_cast<int>(std::min<std::size_t>(piece.iov_len - at, 1 << 30));
      const auto got = library_.ssl_read(ssl_, static_cast<char*>(piece.iov_base) + at, room);
      if (got <= 0) {
        const auto end = understand(got, receive_awaits_room_, kSslErrorWantWrite);
        return total > 0 ? total : end;
      }
      total += got;
      at += static_cast<std::size_t>(got);
      // The rest may be there by now, but to look costs a call that mostly finds nothing.
      if (got < room && library_.ssl_has_pending(ssl_) == 0) return total;
    }
  }
  return total;
}

bool Tls::has_more() const noexcept { return is_over_ || library_.ssl_has_pending(ssl_) != 0; }

std::ptrdiff_t Tls::send(std::span<const iovec> pieces) noexcept {
  library_.error_clear();
  send_awaits_bytes_ = false;
  std::ptrdiff_t total = 0;
  std::size_t offset = 0;  // in the first piece
  std::size_t left = 0;
  for (const auto& piece : pieces) left += piece.iov_len;
  while (!pieces.empty()) {
    const auto& piece = pieces.front();
    const void* from = static_cast<const std::byte*>(piece.iov_base) + offset;
    std::size_t bytes = piece.iov_len - offset;
    if (bytes < kRecordBytes && pieces.size() > 1) {
      bytes = join(pieces, offset);
      from = joined_.data();
    }
    const auto asked = static_cast<int>(std::min(bytes, kRecordBytes));
    // A record is a call of its own: the kernel joins those that follow each other at once.
    has_more_to_send_ = left > static_cast<std::size_t>(asked);
    const auto put = asked == 0 ? 0 : library_.ssl_write(ssl_, from, asked);
    has_more_to_send_ = false;
    if (asked > 0 && put <= 0) {
      const auto end = understand(put, send_awaits_bytes_, kSslErrorWantRead);
      if (total > 0) return total;
      if (end == 0) errno = EPIPE;
      return -1;
    }
    total += put;
    left -= static_cast<std::size_t>(put);
    offset += static_cast<std::size_t>(put);
    while (!pieces.empty() && offset >= pieces.front().iov_len) {
      offset -= pieces.front().iov_len;
      pieces = pieces.subspan(1);
    }
  }
  return total;
}

// A record's worth of pieces that are smaller, in one piece of memory.
std::size_t Tls::join(std::span<const iovec> pieces, std::size_t offset) {
  joined_.resize(kRecordBytes);
  std::size_t bytes = 0;
  for (const auto& piece : pieces) {
    const auto step = std::min(piece.iov_len - offset, kRecordBytes - bytes);
    std::memcpy(joined_.data() + bytes, static_cast<const std::byte*>(piece.iov_base) + offset,
                step);
    bytes += step;
    offset = 0;
    if (bytes == kRecordBytes) break;
  }
  return bytes;
}

void Tls::say_end() noexcept {
  library_.error_clear();
  const bool is_broken = saw_end_ || socket_errno_ != 0 || !failure_.empty();
  if (is_broken || library_.ssl_is_init_finished(ssl_) == 0) return;
  library_.ssl_shutdown(ssl_);
  library_.error_clear();
}

}  // namespace infinistore
