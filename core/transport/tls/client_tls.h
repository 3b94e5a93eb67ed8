#pragma once
// The client's ends of TLS connections: who is trusted, and whether it is he.

#include <memory>
#include <string>

#include "core/transport/tcp/client_dial.h"
#include "core/transport/tls/tls.h"

namespace infinistore {

// Shakes hands over a fresh, non-blocking socket with the server that was dialled as `host`, whose
// certificate must be of that name or address.  `trusted_file`: certificates (PEM) of those who may
// vouch for it; empty: SSL_CERT_FILE's, else this machine's.  Waits, at most until `deadline`.
//
// kSetup says what this machine lacks, kDisconnected what is wrong with the server's certificate,
// and the remedy; kProtocol: what is there does not speak TLS, and what it said is still in the
// socket.
Result<std::unique_ptr<Tls>> connect_tls(int socket, const std::string& host,
                                         const std::string& trusted_file, DialDeadline deadline);

}  // namespace infinistore
