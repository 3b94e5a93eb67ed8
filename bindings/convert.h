#pragma once
// Python objects as what core/ takes: keys, arrays of integers, times.

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/result.h"
#include "core/client/keys.h"

namespace infinistore {

// Becomes a ValueError, which Python's session makes a UsageError.
[[noreturn]] inline void refuse(const std::string& what) {
  throw nanobind::value_error(what.c_str());
}

// The bytes of a str (as UTF-8) or bytes object; they live as long as the object.
inline std::string_view key_bytes(PyObject* object, const char* what, std::size_t index) {
  // As nearly all keys are: without a call.
  if (PyUnicode_CheckExact(object) && PyUnicode_IS_COMPACT_ASCII(object)) {
    return {static_cast<const char*>(PyUnicode_DATA(object)),
            static_cast<std::size_t>(PyUnicode_GET_LENGTH(object))};
  }
  if (PyBytes_Check(object)) {
    return {PyBytes_AS_STRING(object), static_cast<std::size_t>(PyBytes_GET_SIZE(object))};
  }
  if (!PyUnicode_Check(object)) {
    refuse(std::string(what) + " " + std::to_string(index) + " is a " +
           nanobind::str(nanobind::handle(object).type().attr("__name__")).c_str() +
           "; keys are str or bytes");
  }
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(object, &size);
  if (data == nullptr) {
    PyErr_Clear();
    refuse(std::string(what) + " " + std::to_string(index) +
           " is a text that UTF-8 cannot hold; give it as bytes");
  }
  return {data, static_cast<std::size_t>(size)};
}

inline void add_key(KeyList& keys, PyObject* object, std::size_t index) {
  const auto key = key_bytes(object, "key", index);
  if (key.empty() || key.size() > kKeyBytesMax) {
    refuse("key " + std::to_string(index) + " has " + std::to_string(key.size()) +
           " bytes; a key has 1 to " + std::to_string(kKeyBytesMax));
  }
  keys.add(key);
}

inline std::size_t list_size(PyObject* list) {
  return static_cast<std::size_t>(PyList_GET_SIZE(list));
}

// The 64-bit integers of any contiguous buffer; holds it meanwhile.
class Integers {
 public:
  Integers(nanobind::handle object, const char* what) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_CONTIG_RO | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      refuse(std::string(what) + " must be a contiguous array of 64-bit integers");
    }
    const std::string_view format = view_.format == nullptr ? "B" : view_.format;
    const char kind = format.empty() ? 'B' : format.back();
    is_signed_ = kind == 'l' || kind == 'q';
    if (view_.itemsize != 8 || (!is_signed_ && kind != 'L' && kind != 'Q')) {
      PyBuffer_Release(&view_);
      refuse(std::string(what) + " must be an array of 64-bit integers (uint64), not of format '" +
             std::string(format) + "'");
    }
  }
  ~Integers() { PyBuffer_Release(&view_); }
  Integers(const Integers&) = delete;
  Integers& operator=(const Integers&) = delete;

  std::span<const std::uint64_t> values() const noexcept {
    return {static_cast<const std::uint64_t*>(view_.buf),
            static_cast<std::size_t>(view_.len) / sizeof(std::uint64_t)};
  }
  // As its owner would write it, for messages.
  std::string show(std::uint64_t value) const {
    return is_signed_ ? std::to_string(static_cast<std::int64_t>(value)) : std::to_string(value);
  }

 private:
  Py_buffer view_{};
  bool is_signed_ = false;
};

inline Nanos nanos(double seconds) {
  constexpr double kMax = 1e9;  // seconds: beyond it, for ever
  return static_cast<Nanos>(std::min(std::max(seconds, 0.0), kMax) * 1e9);
}

}  // namespace infinistore
