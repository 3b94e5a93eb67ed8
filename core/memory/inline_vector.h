#pragma once
// InlineVector: a vector whose only element, where it has just one, lies in it: no allocation.
//
// For lists that nearly always hold one element, a million times: extents of a value, ranges that
// it was put in.  T is trivially copyable.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>

#include "core/base/check.h"

namespace infinistore {

template <class T>
class InlineVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;
  using reverse_iterator = std::reverse_iterator<iterator>;
  using const_reverse_iterator = std::reverse_iterator<const_iterator>;

  InlineVector() noexcept : one_() {}
  InlineVector(std::initializer_list<T> items) : one_() {
    reserve(items.size());
    for (const T& item : items) push_back(item);
  }
  InlineVector(const InlineVector& other) : one_() {
    reserve(other.size_);
    std::copy(other.begin(), other.end(), data());
    size_ = other.size_;
  }
  InlineVector(InlineVector&& other) noexcept : one_() { take(other); }
  InlineVector& operator=(const InlineVector& other) {
    if (this != &other) *this = InlineVector(other);
    return *this;
  }
  InlineVector& operator=(InlineVector&& other) noexcept {
    if (this != &other) {
      release();
      take(other);
    }
    return *this;
  }
  ~InlineVector() { release(); }

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  T* data() noexcept { return is_inline() ? &one_ : many_; }
  const T* data() const noexcept { return is_inline() ? &one_ : many_; }
  iterator begin() noexcept { return data(); }
  iterator end() noexcept { return data() + size_; }
  const_iterator begin() const noexcept { return data(); }
  const_iterator end() const noexcept { return data() + size_; }
  reverse_iterator rbegin() noexcept { return reverse_iterator(end()); }
  reverse_iterator rend() noexcept { return reverse_iterator(begin()); }
  const_reverse_iterator rbegin() const noexcept { return const_reverse_iterator(end()); }
  const_reverse_iterator rend() const noexcept { return const_reverse_iterator(begin()); }
  T& operator[](std::size_t index) noexcept { return data()[index]; }
  const T& operator[](std::size_t index) const noexcept { return data()[index]; }
  T& front() noexcept { return *begin(); }
  const T& front() const noexcept { return *begin(); }
  T& back() noexcept { return *(end() - 1); }
  const T& back() const noexcept { return *(end() - 1); }

  void reserve(std::size_t capacity) {
    if (capacity <= capacity_) return;
    KV_CHECK(capacity <= UINT32_MAX);
    auto larger = std::make_unique<T[]>(capacity);  // NOLINT(modernize-avoid-c-arrays)
    std::copy(begin(), end(), larger.get());
    if (!is_inline()) delete[] many_;
    many_ = larger.release();
    capacity_ = static_cast<std::uint32_t>(capacity);
  }
  void push_back(const T& item) {
    const T copy = item;  // it may be an element of ours, which reserve() moves
    if (size_ == capacity_) reserve(std::size_t{2} * capacity_);
    data()[size_++] = copy;
  }
  void resize(std::size_t size) {
    reserve(size);
    for (std::size_t i = size_; i < size; ++i) data()[i] = T{};
    size_ = static_cast<std::uint32_t>(size);
  }
  iterator insert(const_iterator at, const T& item) {
    const auto index = at - begin();
    push_back(item);
    std::rotate(begin() + index, end() - 1, end());
    return begin() + index;
  }
  iterator erase(const_iterator at) noexcept {
    const auto index = at - begin();
    std::move(begin() + index + 1, end(), begin() + index);
    --size_;
    return begin() + index;
  }

  friend bool operator==(const InlineVector& one, const InlineVector& other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end());
  }

 private:
  bool is_inline() const noexcept { return capacity_ == 1; }
  void release() noexcept {
    if (!is_inline()) delete[] many_;
    capacity_ = 1;
    size_ = 0;
  }
  // Of an empty one; leaves `other` empty.
  void take(InlineVector& other) noexcept {
    if (other.is_inline()) {
      one_ = other.one_;
    } else {
      many_ = other.many_;
    }
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 1);
  }

  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = 1;  // more than 1: many_
  union {
    T one_;
    T* many_;
  };
};

}  // namespace infinistore
