#include "core/transport/tls/library.h"

#include <dlfcn.h>

#include <cstdlib>

namespace infinistore {
namespace {

constexpr const char* kNames[] = {"libssl.so.3", "libssl.so.1.1"};

Error missing(const std::string& why) {
  return {Code::kSetup, "TLS cannot be used: " + why +
                            "; install OpenSSL 3 or 1.1.1 (Debian and Ubuntu: apt-get install "
                            "libssl3)"};
}

template <class Function>
void find(void* library, const char* name, Function& function, std::string& lacks) {
  void* const symbol = ::dlsym(library, name);  // also of libcrypto, which libssl brings
  function = reinterpret_cast<Function>(symbol);
  if (symbol == nullptr && lacks.empty()) lacks = name;
}

void find_context(void* library, TlsLibrary& tls, std::string& lacks) {
  find(library, "TLS_server_method", tls.server_method, lacks);
  find(library, "TLS_client_method", tls.client_method, lacks);
  find(library, "SSL_CTX_new", tls.context_new, lacks);
  find(library, "SSL_CTX_free", tls.context_free, lacks);
  find(library, "SSL_CTX_ctrl", tls.context_control, lacks);
  find(library, "SSL_CTX_set_options", tls.context_set_options, lacks);
  find(library, "SSL_CTX_set_cipher_list", tls.context_set_ciphers, lacks);
  find(library, "SSL_CTX_set_num_tickets", tls.context_set_ticket_count, lacks);
  find(library, "SSL_CTX_set_default_read_buffer_len", tls.context_set_read_bytes, lacks);
  find(library, "SSL_CTX_set_default_passwd_cb", tls.context_set_password, lacks);
  find(library, "SSL_CTX_set_verify", tls.context_set_verify, lacks);
  find(library, "SSL_CTX_use_certificate_chain_file", tls.context_use_chain, lacks);
  find(library, "SSL_CTX_use_PrivateKey_file", tls.context_use_key, lacks);
  find(library, "SSL_CTX_check_private_key", tls.context_check_key, lacks);
  find(library, "SSL_CTX_load_verify_locations", tls.context_trust, lacks);
  find(library, "SSL_CTX_set_default_verify_paths", tls.context_trust_usual, lacks);
}

void find_ssl(void* library, TlsLibrary& tls, std::string& lacks) {
  find(library, "SSL_new", tls.ssl_new, lacks);
  find(library, "SSL_free", tls.ssl_free, lacks);
  find(library, "SSL_set_bio", tls.ssl_set_bio, lacks);
  find(library, "SSL_set_accept_state", tls.ssl_accept_state, lacks);
  find(library, "SSL_set_connect_state", tls.ssl_connect_state, lacks);
  find(library, "SSL_do_handshake", tls.ssl_handshake, lacks);
  find(library, "SSL_read", tls.ssl_read, lacks);
  find(library, "SSL_write", tls.ssl_write, lacks);
  find(library, "SSL_shutdown", tls.ssl_shutdown, lacks);
  find(library, "SSL_has_pending", tls.ssl_has_pending, lacks);
  find(library, "SSL_is_init_finished", tls.ssl_is_init_finished, lacks);
  find(library, "SSL_get_error", tls.ssl_error, lacks);
  find(library, "SSL_ctrl", tls.ssl_control, lacks);
  find(library, "SSL_set1_host", tls.ssl_set_host, lacks);
  find(library, "SSL_get0_param", tls.ssl_verify_parameters, lacks);
  find(library, "X509_VERIFY_PARAM_set1_ip_asc", tls.verify_set_address, lacks);
  find(library, "SSL_get_verify_result", tls.ssl_verify_result, lacks);
  find(library, "X509_verify_cert_error_string", tls.verify_error_text, lacks);
  find(library, "ERR_get_error", tls.error_take, lacks);
  find(library, "ERR_clear_error", tls.error_clear, lacks);
  find(library, "ERR_reason_error_string", tls.error_reason, lacks);
}

void find_bio(void* library, TlsLibrary& tls, std::string& lacks) {
  find(library, "BIO_get_new_index", tls.bio_new_index, lacks);
  find(library, "BIO_meth_new", tls.bio_method_new, lacks);
  find(library, "BIO_meth_set_write", tls.bio_method_set_write, lacks);
  find(library, "BIO_meth_set_read", tls.bio_method_set_read, lacks);
  find(library, "BIO_meth_set_ctrl", tls.bio_method_set_control, lacks);
  find(library, "BIO_new", tls.bio_new, lacks);
  find(library, "BIO_set_data", tls.bio_set_data, lacks);
  find(library, "BIO_get_data", tls.bio_data, lacks);
  find(library, "BIO_set_init", tls.bio_set_init, lacks);
  find(library, "BIO_set_flags", tls.bio_set_flags, lacks);
  find(library, "BIO_clear_flags", tls.bio_clear_flags, lacks);
}

Result<const TlsLibrary*> load() {
  const char* const chosen = std::getenv("INFINISTORE_SSL_LIBRARY");
  void* library = nullptr;
  std::string why;
  if (chosen != nullptr && *chosen != '\0') {
    library = ::dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) why = ::dlerror();
  } else {
    for (const char* const name : kNames) {
      library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library != nullptr) break;
      why += (why.empty() ? "" : ", ") + std::string(::dlerror());
    }
  }
  if (library == nullptr) return missing(why);
  static TlsLibrary tls;
  std::string lacks;
  find_context(library, tls, lacks);
  find_ssl(library, tls, lacks);
  find_bio(library, tls, lacks);
  if (!lacks.empty()) return missing("the libssl of this machine has no " + lacks);
  return &tls;
}

}  // namespace

std::string TlsLibrary::take_error() const {
  std::string text;
  for (unsigned long error = error_take(); error != 0; error = error_take()) {
    const char* const reason = error_reason(error);
    if (text.empty()) {
      text = reason != nullptr ? std::string(reason) : "error " + std::to_string(error);
    }
  }
  return text;
}

Result<const TlsLibrary*> load_tls_library() {
  static const Result<const TlsLibrary*> loaded = load();
  return loaded;
}

}  // namespace infinistore
