#pragma once
// TlsLibrary: the part of OpenSSL (1.1.1, 3) that is used here, loaded when it is first asked for.
//
// Nothing of OpenSSL is needed to build or to start: who speaks no TLS does without.

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/result.h"

// OpenSSL's own, as it names them.
struct ssl_st;
struct ssl_ctx_st;
struct ssl_method_st;
struct bio_st;
struct bio_method_st;
struct X509_VERIFY_PARAM_st;

namespace infinistore {

using SslAnswer = int;  // 1: well; of what moves bytes: how many

struct TlsLibrary {
  const ssl_method_st* (*server_method)();
  const ssl_method_st* (*client_method)();
  ssl_ctx_st* (*context_new)(const ssl_method_st* method);
  void (*context_free)(ssl_ctx_st* context);
  long (*context_control)(ssl_ctx_st* context, int what, long value, void* more);
  std::uint64_t (*context_set_options)(ssl_ctx_st* context, std::uint64_t options);
  SslAnswer (*context_set_ciphers)(ssl_ctx_st* context, const char* names);
  SslAnswer (*context_set_ticket_count)(ssl_ctx_st* context, std::size_t count);
  void (*context_set_read_bytes)(ssl_ctx_st* context, std::size_t bytes);
  void (*context_set_password)(ssl_ctx_st* context, int (*ask)(char*, int, int, void*));
  void (*context_set_verify)(ssl_ctx_st* context, int mode, void* callback);
  SslAnswer (*context_use_chain)(ssl_ctx_st* context, const char* file);
  SslAnswer (*context_use_key)(ssl_ctx_st* context, const char* file, int type);
  SslAnswer (*context_check_key)(const ssl_ctx_st* context);
  SslAnswer (*context_trust)(ssl_ctx_st* context, const char* file, const char* folder);
  SslAnswer (*context_trust_usual)(ssl_ctx_st* context);

  ssl_st* (*ssl_new)(ssl_ctx_st* context);
  void (*ssl_free)(ssl_st* ssl);
  void (*ssl_set_bio)(ssl_st* ssl, bio_st* in, bio_st* out);
  void (*ssl_accept_state)(ssl_st* ssl);
  void (*ssl_connect_state)(ssl_st* ssl);
  SslAnswer (*ssl_handshake)(ssl_st* ssl);
  SslAnswer (*ssl_read)(ssl_st* ssl, void* into, int bytes);
  SslAnswer (*ssl_write)(ssl_st* ssl, const void* from, int bytes);
  SslAnswer (*ssl_shutdown)(ssl_st* ssl);
  int (*ssl_has_pending)(const ssl_st* ssl);
  int (*ssl_is_init_finished)(const ssl_st* ssl);
  int (*ssl_error)(const ssl_st* ssl, SslAnswer answer);
  long (*ssl_control)(ssl_st* ssl, int what, long value, void* more);
  SslAnswer (*ssl_set_host)(ssl_st* ssl, const char* name);
  X509_VERIFY_PARAM_st* (*ssl_verify_parameters)(ssl_st* ssl);
  SslAnswer (*verify_set_address)(X509_VERIFY_PARAM_st* parameters, const char* address);
  long (*ssl_verify_result)(const ssl_st* ssl);
  const char* (*verify_error_text)(long error);

  unsigned long (*error_take)();
  void (*error_clear)();
  const char* (*error_reason)(unsigned long error);

  int (*bio_new_index)();
  bio_method_st* (*bio_method_new)(int type, const char* name);
  int (*bio_method_set_write)(bio_method_st* method, int (*write)(bio_st*, const char*, int));
  int (*bio_method_set_read)(bio_method_st* method, int (*read)(bio_st*, char*, int));
  int (*bio_method_set_control)(bio_method_st* method, long (*control)(bio_st*, int, long, void*));
  bio_st* (*bio_new)(const bio_method_st* method);
  void (*bio_set_data)(bio_st* bio, void* data);
  void* (*bio_data)(bio_st* bio);
  void (*bio_set_init)(bio_st* bio, int is_ready);
  void (*bio_set_flags)(bio_st* bio, int flags);
  void (*bio_clear_flags)(bio_st* bio, int flags);

  // Why the last call of this thread failed, in OpenSSL's words; empties its list of errors.
  std::string take_error() const;
};

// kSetup: this machine has none, and what to do.  Loads once; any thread.
Result<const TlsLibrary*> load_tls_library();

}  // namespace infinistore
