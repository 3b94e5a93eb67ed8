#include "core/transport/tls/client_tls.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/transport/fork_hold.h"
#include "core/transport/tls/constants.h"
#include "core/transport/tls/context.h"

namespace infinistore {
namespace {

bool is_number(const std::string& host) noexcept {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return ::inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
}

Result<TlsContext> read_trusted(const std::string& trusted_file) {
  auto context = TlsContext::make(Tls::Side::kClient);
  if (!context) return context;
  const TlsLibrary& library = context->library();
  library.context_set_verify(context->native(), kSslVerifyPeer, nullptr);
  const bool is_read =
      trusted_file.empty()
          ? library.context_trust_usual(context->native()) == 1
          : library.context_trust(context->native(), trusted_file.c_str(), nullptr) == 1;
  if (!is_read) {
    return Error{Code::kSetup, "tls_ca_file " + trusted_file +
                                   " holds no certificates in PEM: " + library.take_error()};
  }
  library.error_clear();
  return context;
}

Error cannot_name(const TlsLibrary& library, const std::string& host) {
  return {Code::kSetup,
          "'" + host + "' cannot be looked for in a certificate: " + library.take_error()};
}

Result<std::unique_ptr<Tls>> begin(int socket, const std::string& host,
                                   const std::string& trusted_file) {
  const auto hold = hold_off_forks();  // making contexts and handshakes take locks of OpenSSL's
  auto context = read_trusted(trusted_file);
  if (!context) return context.error();
  const TlsLibrary& library = context->library();
  auto tls = Tls::make(library, context->native(), socket, Tls::Side::kClient);
  if (!tls) return tls;
  ssl_st* const ssl = (*tls)->native();
  const std::string number = host.substr(0, host.find('%'));  // without a scope of IPv6
  if (is_number(number)) {
    if (library.verify_set_address(library.ssl_verify_parameters(ssl), number.c_str()) != 1) {
      return cannot_name(library, host);
    }
    return tls;
  }
  std::string name = host;
  if (library.ssl_set_host(ssl, name.c_str()) != 1 ||
      library.ssl_control(ssl, kControlHostName, kHostNameType, name.data()) != 1) {
    return cannot_name(library, host);
  }
  return tls;
}

Error refused(const TlsLibrary& library, long verdict, const std::string& host,
              const std::string& trusted_file) {
  const std::string whose = "the server's certificate ";
  const std::string why = std::string(" (") + library.verify_error_text(verdict) + ")";
  switch (verdict) {
    case kVerifyExpired:
      return {Code::kDisconnected, whose + "has expired" + why + "; give the server a new one"};
    case kVerifyNotYet:
      return {Code::kDisconnected,
              whose + "is not valid yet" + why + "; compare both machines' clocks"};
    case kVerifyWrongHost:
    case kVerifyWrongAddress:
      return {Code::kDisconnected,
              whose + "is of another name than " + host + why +
                  "; write a name that it has, or give the server one that has " + host +
                  " among its subjectAltName"};
    case kVerifySelfSigned:
    case kVerifySelfSignedInChain:
    case kVerifyNoIssuer:
    case kVerifyNoIssuerOfLeaf:
      return {Code::kDisconnected, whose + "is of nobody whom this client trusts" + why +
                                       "; name its authority's certificate by tls_ca_file or "
                                       "SSL_CERT_FILE" +
                                       (trusted_file.empty() ? "" : " (now " + trusted_file + ")")};
    default:
      return {Code::kDisconnected, whose + "is not accepted" + why};
  }
}

Error failed(Tls& tls, const TlsLibrary& library, int error, const std::string& host,
             const std::string& trusted_file) {
  if (tls.met_plain()) {
    return {Code::kProtocol,
            "the server does not speak TLS; write infinistore:// instead of "
            "infinistores://, or give it --tls-cert-file and --tls-key-file"};
  }
  const long verdict = library.ssl_verify_result(tls.native());
  if (verdict != kVerifyOk) return refused(library, verdict, host, trusted_file);
  if (!tls.failure().empty()) return {Code::kDisconnected, tls.failure()};
  return {Code::kDisconnected,
          std::string("the server broke off the handshake (") + std::strerror(error) + ")"};
}

}  // namespace

Result<std::unique_ptr<Tls>> connect_tls(int socket, const std::string& host,
                                         const std::string& trusted_file, DialDeadline deadline) {
  auto tls = begin(socket, host, trusted_file);
  if (!tls) return tls;
  const TlsLibrary& library = *load_tls_library().value();
  while (true) {
    {
      const auto hold = hold_off_forks();
      if ((*tls)->shake_hands()) return tls;
      if (errno != EAGAIN) return failed(**tls, library, errno, host, trusted_file);
    }
    const short awaited = (*tls)->receive_awaits_room() ? POLLOUT : POLLIN;
    if (!wait_ready(socket, awaited, deadline)) {
      return Error{Code::kTimeout,
                   "the server accepted the connection but does not answer the handshake of TLS"};
    }
  }
}

}  // namespace infinistore
