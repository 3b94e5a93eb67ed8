#pragma once
// Tls: one end of a TLS connection over a non-blocking socket, which stays its owner's.
//
// The handshake is a part of the first calls.  Nothing is taken of a peer that does not speak TLS:
// what it said is still in the socket.

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/result.h"
#include "core/transport/tls/library.h"

namespace infinistore {

class Tls {
 public:
  enum class Side { kServer, kClient };

  // kSetup if OpenSSL has no memory for it.
  static Result<std::unique_ptr<Tls>> make(const TlsLibrary& library, ssl_ctx_st* context,
                                           int socket, Side side);
  Tls(const TlsLibrary& library, ssl_st* ssl, int socket) noexcept
      : library_(library), ssl_(ssl), socket_(socket) {}
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // As readv() and writev(): how many bytes; 0 at the end; -1 and errno, EAGAIN if that is for
  // later, EPROTO if failure() says why.  After EAGAIN send() is called again with the same bytes,
  // or with more behind them.
  std::ptrdiff_t receive(std::span<const iovec> pieces) noexcept;
  std::ptrdiff_t send(std::span<const iovec> pieces) noexcept;
  // True once it is over; else -1's rules: see failure() and errno.
  bool shake_hands() noexcept;

  // The last receive() has left something that the socket will not tell of.
  bool has_more() const noexcept;
  // What the last call of each kind waits for if that is not its own direction.
  bool receive_awaits_room() const noexcept { return receive_awaits_room_; }
  bool send_awaits_bytes() const noexcept { return send_awaits_bytes_; }

  // Says that nothing more is sent, if the socket takes it now.
  void say_end() noexcept;

  // Whether these are the first bytes of a client that begins TLS.
  static bool begins_handshake(Bytes first) noexcept;

  bool met_plain() const noexcept { return met_plain_; }  // the peer speaks no TLS
  const std::string& failure() const noexcept { return failure_; }
  ssl_st* native() noexcept { return ssl_; }

 private:
  static int read_socket(bio_st* bio, char* into, int bytes);
  static int write_socket(bio_st* bio, const char* from, int bytes);
  static long control_socket(bio_st* bio, int what, long value, void* more);
  static const bio_method_st* socket_method(const TlsLibrary& library);

  std::ptrdiff_t look() noexcept;
  std::ptrdiff_t take(std::span<const iovec> pieces) noexcept;
  std::ptrdiff_t understand(SslAnswer answer, bool& awaits_other, int other);
  std::size_t join(std::span<const iovec> pieces, std::size_t offset);

  const TlsLibrary& library_;
  ssl_st* const ssl_;
  const int socket_;
  std::vector<std::byte> joined_;  // small pieces, as one record
  bool has_more_to_send_ = false;  // behind the record that is being written
  bool has_looked_ = false;        // at the first bytes
  bool met_plain_ = false;
  bool saw_end_ = false;  // of the socket
  bool is_over_ = false;  // a later call says so
  bool receive_awaits_room_ = false;
  bool send_awaits_bytes_ = false;
  int socket_errno_ = 0;
  std::string failure_;
};

}  // namespace infinistore
