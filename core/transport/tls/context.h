#pragma once
// TlsContext: what one side's connections are made from: versions, ciphers, certificates.

#include <utility>

#include "core/transport/tls/tls.h"

namespace infinistore {

class TlsContext {
 public:
  TlsContext(const TlsLibrary& library, ssl_ctx_st* context) noexcept
      : library_(&library), context_(context) {}
  TlsContext(TlsContext&& other) noexcept
      : library_(other.library_), context_(std::exchange(other.context_, nullptr)) {}
  TlsContext& operator=(TlsContext&& other) noexcept {
    std::swap(library_, other.library_);
    std::swap(context_, other.context_);
    return *this;
  }
  ~TlsContext() {
    if (context_ != nullptr) library_->context_free(context_);
  }

  // kSetup: there is no OpenSSL, or it refuses.
  static Result<TlsContext> make(Tls::Side side);

  const TlsLibrary& library() const noexcept { return *library_; }
  ssl_ctx_st* native() const noexcept { return context_; }

 private:
  const TlsLibrary* library_;
  ssl_ctx_st* context_;
};

}  // namespace infinistore
