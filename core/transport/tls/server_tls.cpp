#include "core/transport/tls/server_tls.h"

#include "core/transport/tls/constants.h"

namespace infinistore {
namespace {

int refuse_password(char*, int, int, void*) { return 0; }  // a service has nobody to ask

}  // namespace

Result<TlsContext> ServerTls::read(const std::string& chain_file, const std::string& key_file) {
  auto context = TlsContext::make(Tls::Side::kServer);
  if (!context) return context.error();
  const TlsLibrary& library = context->library();
  const auto refused = [&](const std::string& what) {
    return Error{Code::kSetup, what + ": " + library.take_error()};
  };
  library.context_set_password(context->native(), &refuse_password);
  if (library.context_use_chain(context->native(), chain_file.c_str()) != 1) {
    return refused("tls_cert_file " + chain_file + " is no certificate chain in PEM");
  }
  if (library.context_use_key(context->native(), key_file.c_str(), kSslFiletypePem) != 1) {
    return refused("tls_key_file " + key_file + " is no key of tls_cert_file in PEM, or wants a " +
                   "password");
  }
  if (library.context_check_key(context->native()) != 1) {
    return refused("tls_key_file " + key_file + " is not the key of tls_cert_file");
  }
  return context;
}

Result<std::unique_ptr<ServerTls>> ServerTls::open(std::string chain_file, std::string key_file) {
  auto context = read(chain_file, key_file);
  if (!context) return context.error();
  return std::make_unique<ServerTls>(Private{}, std::move(chain_file), std::move(key_file),
                                     std::move(*context));
}

Error ServerTls::reload() {
  auto context = read(chain_file_, key_file_);
  if (!context) return context.error();
  const MutexLock lock(mutex_);
  context_ = std::move(*context);
  return {Code::kOk, {}};
}

Result<std::unique_ptr<Tls>> ServerTls::accept(int socket) {
  const MutexLock lock(mutex_);
  return Tls::make(context_.library(), context_.native(), socket, Tls::Side::kServer);
}

}  // namespace infinistore
