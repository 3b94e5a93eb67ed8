#pragma once
// KeyList: many keys in one piece of memory.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace infinistore {

class KeyList {
 public:
  void reserve(std::size_t count, std::size_t key_bytes = 0) {
    ends_.reserve(count);
    bytes_.reserve(count * key_bytes);
  }
  void add(std::string_view key) {
    bytes_.append(key);
    ends_.push_back(bytes_.size());
  }
  std::size_t size() const noexcept { return ends_.size(); }
  bool empty() const noexcept { return ends_.empty(); }
  std::string_view operator[](std::size_t index) const noexcept {
    const std::size_t begin = index == 0 ? 0 : ends_[index - 1];
    return std::string_view(bytes_).substr(begin, ends_[index] - begin);
  }
  // The keys from `begin` on, `count` of them; they view this list.
  std::vector<std::string_view> views(std::size_t begin, std::size_t count) const {
    std::vector<std::string_view> keys;
    keys.reserve(count);
    for (std::size_t i = begin; i < begin + count; ++i) keys.push_back((*this)[i]);
    return keys;
  }

 private:
  std::string bytes_;
  std::vector<std::size_t> ends_;  // of each key
};

}  // namespace infinistore
