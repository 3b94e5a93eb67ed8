#include "bindings/pack.h"

#include <cstring>

#include "bindings/convert.h"
#include "core/base/hash.h"

namespace nb = nanobind;

namespace infinistore {
namespace {

// Keys of a long list are mostly out of the CPU's cache: without this, much of the time would go by
// in waits for them.
constexpr std::size_t kLookAhead = 8;
constexpr std::size_t kObjectBytes = 64;  // before the end of a short text, at least
void look_ahead(PyObject* object) {
  __builtin_prefetch(object);
  __builtin_prefetch(reinterpret_cast<const char*>(object) + kObjectBytes);
}

std::string at(std::size_t index) { return "block " + std::to_string(index); }

std::string shown(PyObject* object) { return nb::repr(nb::handle(object)).c_str(); }

// A Python integer of 0 to 2^64 - 1, or what acts like one, as such.
std::uint64_t integer_of(PyObject* object, std::size_t block, const char* what) {
  auto index = nb::steal(PyNumber_Index(object));
  if (index.is_valid()) {
    const auto value = PyLong_AsUnsignedLongLong(index.ptr());
    if (PyErr_Occurred() == nullptr) return value;
  }
  PyErr_Clear();
  refuse(at(block) + ": its " + what + " " + shown(object) +
         " is no integer of 0 or more, in 64 bits");
}

// Where a buffer's bytes are; the caller keeps the buffer.
std::uint64_t address_of(nb::handle buffer) {
  Py_buffer view{};
  if (PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const auto address = reinterpret_cast<std::uintptr_t>(view.buf);
  PyBuffer_Release(&view);
  return address;
}

// Address, bytes and bytes of an element of a contiguous array that holds no Python objects; None
// for everything else, which others explain.
nb::object plain_buffer(nb::handle array, bool writable) {
  Py_buffer view{};
  const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_CheckBuffer(array.ptr()) == 0 ||
      PyObject_GetBuffer(array.ptr(), &view, flags) != 0) {
    PyErr_Clear();
    return nb::none();
  }
  const bool has_objects = view.format != nullptr && std::strchr(view.format, 'O') != nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(view.buf);
  const auto bytes = view.len;
  const auto element_bytes = view.itemsize;
  PyBuffer_Release(&view);
  if (has_objects) return nb::none();
  return nb::make_tuple(address, bytes, element_bytes);
}

std::string_view group_of(std::string_view key) {
  const auto open = key.find('{');
  if (open == std::string_view::npos) return key;
  const auto close = key.find('}', open + 1);
  if (close == std::string_view::npos || close == open + 1) return key;
  return key.substr(open + 1, close - open - 1);
}

}  // namespace

Pack Pack::from_keys(nb::list keys) {
  Pack pack;
  const std::size_t count = list_size(keys.ptr());
  pack.spec_.keys.reserve(count);
  const auto key_at = [&](std::size_t i) {
    return PyList_GetItem(keys.ptr(), static_cast<Py_ssize_t>(i));
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kLookAhead < count) look_ahead(key_at(i + kLookAhead));
    add_key(pack.spec_.keys, key_at(i), i);
  }
  return pack;
}

Pack Pack::from_blocks(nb::list blocks) {
  Pack pack;
  const std::size_t count = list_size(blocks.ptr());
  pack.spec_.keys.reserve(count);
  pack.offsets_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    PyObject* const block = PyList_GetItem(blocks.ptr(), static_cast<Py_ssize_t>(i));
    if (!PyTuple_Check(block) || PyTuple_Size(block) != 2) {
      refuse(at(i) + " is " + shown(block) + "; a block is a tuple (key, offset)");
    }
    add_key(pack.spec_.keys, PyTuple_GetItem(block, 0), i);
    pack.offsets_.push_back(integer_of(PyTuple_GetItem(block, 1), i, "offset"));
  }
  return pack;
}

void Pack::place(std::uint64_t base, std::uint64_t cache_bytes, std::uint64_t element_bytes,
                 std::uint64_t page_bytes, nb::object offsets) {
  const auto put = [&](std::span<const std::uint64_t> values, const auto& show) {
    if (values.size() != size()) {
      refuse(std::to_string(size()) + " keys have " + std::to_string(values.size()) +
             " offsets; give one for each");
    }
    const std::uint64_t last =
        page_bytes > cache_bytes ? 0 : (cache_bytes - page_bytes) / element_bytes;
    spec_.addresses.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (page_bytes > cache_bytes || values[i] > last) [[unlikely]] {
        refuse(at(i) + " at offset " + show(values[i]) + " takes " + std::to_string(page_bytes) +
               " bytes from byte offset*" + std::to_string(element_bytes) +
               " on, past the end of the cache (" + std::to_string(cache_bytes) +
               " bytes); offsets count " +
               (element_bytes == 1 ? "bytes" : "elements, not bytes or blocks"));
      }
      spec_.addresses[i] = base + values[i] * element_bytes;
    }
  };
  if (offsets.is_none()) {
    put(offsets_, [](std::uint64_t value) { return std::to_string(value); });
  } else {
    const Integers integers(offsets, "offsets");
    put(integers.values(), [&](std::uint64_t value) { return integers.show(value); });
  }
  spec_.segments_per_key = 1;
  spec_.segment_bytes = page_bytes;
}

void Pack::place_segments(nb::object addresses, std::size_t segments_per_key,
                          std::uint64_t segment_bytes) {
  const Integers integers(addresses, "addresses");
  const auto values = integers.values();
  if (values.size() != size() * segments_per_key) {
    refuse(std::to_string(size()) + " keys with " + std::to_string(segments_per_key) +
           " segments each need " + std::to_string(size() * segments_per_key) + " addresses, not " +
           std::to_string(values.size()));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0) {
      refuse(at(i / segments_per_key) + ": the address of its segment " +
             std::to_string(i % segments_per_key) + " is 0; give addresses of allocated memory");
    }
  }
  spec_.addresses.assign(values.begin(), values.end());
  spec_.segments_per_key = segments_per_key;
  spec_.segment_bytes = segment_bytes;
}

void Pack::set_chain(nb::list parents, nb::list depths) {
  if (list_size(parents.ptr()) != size() || list_size(depths.ptr()) != size()) {
    refuse("parents and depths need one entry for each of the " + std::to_string(size()) + " keys");
  }
  for (std::size_t i = 0; i < size(); ++i) {
    const auto index = static_cast<Py_ssize_t>(i);
    PyObject* const parent = PyList_GetItem(parents.ptr(), index);
    const auto key = parent == Py_None ? std::string_view{} : key_bytes(parent, "parent", i);
    if (key.size() > kKeyBytesMax) {
      refuse("parent " + std::to_string(i) + " has " + std::to_string(key.size()) +
             " bytes; a key has at most " + std::to_string(kKeyBytesMax));
    }
    const auto depth = integer_of(PyList_GetItem(depths.ptr(), index), i, "depth");
    if (depth > 0xFFFFFFFFU) refuse(at(i) + ": its depth does not fit 32 bits");
    spec_.parents.add(key);
    spec_.depths.push_back(static_cast<std::uint32_t>(depth));
  }
}

nb::bytes Pack::groups() const {
  std::vector<std::uint64_t> hashes;
  hashes.reserve(size());
  for (std::size_t i = 0; i < size(); ++i) hashes.push_back(hash_key(group_of(spec_.keys[i])));
  return nb::bytes(hashes.data(), hashes.size() * sizeof(std::uint64_t));
}

Pack Pack::part(nb::object indexes) const {
  const Integers integers(indexes, "indexes");
  const auto chosen = integers.values();
  const std::size_t per_key = spec_.addresses.empty() ? 0 : spec_.segments_per_key;
  Pack part;
  auto& spec = part.spec_;
  spec.segments_per_key = spec_.segments_per_key;
  spec.segment_bytes = spec_.segment_bytes;
  spec.is_up_to = spec_.is_up_to;
  spec.keys.reserve(chosen.size());
  spec.addresses.reserve(chosen.size() * per_key);
  for (const auto index : chosen) {
    spec.keys.add(key(index));
    const auto* const first = spec_.addresses.data() + index * per_key;
    spec.addresses.insert(spec.addresses.end(), first, first + per_key);
    if (spec_.parents.empty()) continue;
    spec.parents.add(spec_.parents[index]);
    spec.depths.push_back(spec_.depths[index]);
  }
  return part;
}

std::string_view Pack::key(std::size_t index) const {
  if (index >= size()) throw nb::index_error();
  return spec_.keys[index];
}

void Pack::set_up_to() {
  if (spec_.segments_per_key != 1) {
    refuse("a value of unknown size needs one segment; give addresses of shape (n,)");
  }
  spec_.is_up_to = true;
}

void init_pack(nb::module_& module) {
  module.def("address_of", &address_of, nb::arg("buffer"));
  module.def("plain_buffer", &plain_buffer, nb::arg("array"), nb::arg("writable"),
             nb::sig("def plain_buffer(array: object, writable: bool) -> "
                     "tuple[int, int, int] | None"));
  nb::class_<Pack>(module, "Pack", "Keys and places of a batch, checked.")
      .def_static("from_keys", &Pack::from_keys, nb::arg("keys"))
      .def_static("from_blocks", &Pack::from_blocks, nb::arg("blocks"))
      .def("__len__", &Pack::size)
      .def("place", &Pack::place, nb::arg("base"), nb::arg("cache_bytes"), nb::arg("element_bytes"),
           nb::arg("page_bytes"), nb::arg("offsets").none())
      .def("place_segments", &Pack::place_segments, nb::arg("addresses"),
           nb::arg("segments_per_key"), nb::arg("segment_bytes"))
      .def("set_chain", &Pack::set_chain, nb::arg("parents"), nb::arg("depths"))
      .def("groups", &Pack::groups, "The hash of each key's group, as uint64.")
      .def("part", &Pack::part, nb::arg("indexes"), "A copy with these keys, in this order.")
      .def(
          "key",
          [](const Pack& self, std::size_t index) {
            const auto key = self.key(index);
            return nb::bytes(key.data(), key.size());
          },
          nb::arg("index"))
      .def_prop_ro("range_bytes", &Pack::range_bytes, "Bytes of each key's range.")
      .def("set_up_to", &Pack::set_up_to);
}

}  // namespace infinistore
