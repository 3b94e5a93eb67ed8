#include "core/transport/tls/context.h"

#include <string>

#include "core/transport/tls/constants.h"

namespace infinistore {
namespace {

// Whole records that one read of the socket takes; given back while a connection is silent.
constexpr std::size_t kReadBytes = 128 * 1024;

// Of TLS 1.2: those with forward secrecy and authenticated encryption.  TLS 1.3 has no others.
constexpr const char* kCiphers = "ECDHE+AESGCM:ECDHE+CHACHA20";

}  // namespace

Result<TlsContext> TlsContext::make(Tls::Side side) {
  const auto loaded = load_tls_library();
  if (!loaded) return loaded.error();
  const TlsLibrary& library = *loaded.value();
  library.error_clear();
  const bool is_server = side == Tls::Side::kServer;
  TlsContext context(
      library, library.context_new(is_server ? library.server_method() : library.client_method()));
  if (context.context_ == nullptr) {
    return Error{Code::kSetup, "OpenSSL fails: " + library.take_error()};
  }
  const auto set = [&](int what, long value) {
    library.context_control(context.context_, what, value, nullptr);
  };
  set(kControlMinVersion, kVersion12);
  set(kControlMode, kModePartialWrite | kModeMovingBuffer | kModeReleaseBuffers);
  set(kControlReadAhead, 1);
  set(kControlSessionCache, 0);
  library.context_set_read_bytes(context.context_, kReadBytes);
  library.context_set_options(context.context_, kOptionNoCompression | kOptionNoRenegotiation);
  library.context_set_ticket_count(context.context_, 0);  // nobody resumes
  if (library.context_set_ciphers(context.context_, kCiphers) != 1) {
    return Error{Code::kSetup, "OpenSSL knows no cipher of " + std::string(kCiphers)};
  }
  return context;
}

}  // namespace infinistore
