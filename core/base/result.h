#pragma once
// Result: a value, or why there is none.  Code: every outcome and failure, numbered as on the wire;
// and so is OnExists, on which outcomes of puts depend.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace infinistore {

// Mirrors docs/protocol.md section 5 and infinistore/errors.py; tests/test_mirrors.py compares
// them.
enum class Code : std::uint8_t {
  kOk = 0,
  kExists = 1,
  kMissing = 2,
  kSizeMismatch = 3,
  kTooLarge = 4,
  kOutOfMemory = 5,
  kOverloaded = 6,
  kInvalid = 7,
  kUnauthorized = 8,
  kProtocol = 9,
  kVersion = 10,
  kDisconnected = 11,
  kTimeout = 12,
  kCancelled = 13,
  kCorrupt = 14,
  kAborted = 15,
  kLeaseExpired = 16,
  kClosed = 17,
  kSetup = 18,
  kDraining = 19,
  kQuotaExceeded = 20,
};

// What a put does to a key that has a value.  kCopy keeps it as kKeep does, and is not sealed once
// its key was erased or replaced since its reservation: what was read elsewhere before may be old.
enum class OnExists : std::uint8_t { kKeep = 0, kReplace = 1, kCopy = 2 };
inline constexpr auto kOnExistsLast = static_cast<std::uint8_t>(OnExists::kCopy);
inline constexpr std::uint8_t kCodeCount = 21;

std::string_view code_name(Code code) noexcept;

struct Error {
  Code code = Code::kInvalid;
  std::string message;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Error error) : state_(std::move(error)) {}
  Result(Code code) : state_(Error{code, std::string(code_name(code))}) {}

  bool ok() const noexcept { return std::holds_alternative<T>(state_); }
  explicit operator bool() const noexcept { return ok(); }

  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  T& operator*() & { return value(); }
  T* operator->() { return &value(); }

  const Error& error() const { return std::get<Error>(state_); }
  Code code() const noexcept { return ok() ? Code::kOk : std::get<Error>(state_).code; }

 private:
  std::variant<T, Error> state_;
};

}  // namespace infinistore
