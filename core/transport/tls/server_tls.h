#pragma once
// ServerTls: the certificate that a server shows, and the server's ends of connections with it.
//
// Thread-safe.

#include <memory>
#include <string>

#include "core/base/mutex.h"
#include "core/transport/tls/context.h"
#include "core/transport/tls/tls.h"

namespace infinistore {

class ServerTls {
  struct Private {};

 public:
  // PEM files: the certificate with those that vouch for it, and its key.  kSetup names what is
  // wrong.
  static Result<std::unique_ptr<ServerTls>> open(std::string chain_file, std::string key_file);
  ServerTls(Private, std::string chain_file, std::string key_file, TlsContext context)
      : chain_file_(std::move(chain_file)),
        key_file_(std::move(key_file)),
        context_(std::move(context)) {}

  // Reads the files again, for connections to come.  If they cannot be used the old pair stays.
  Error reload();

  Result<std::unique_ptr<Tls>> accept(int socket);

 private:
  static Result<TlsContext> read(const std::string& chain_file, const std::string& key_file);

  const std::string chain_file_, key_file_;
  Mutex mutex_;
  TlsContext context_ GUARDED_BY(mutex_);
};

}  // namespace infinistore
