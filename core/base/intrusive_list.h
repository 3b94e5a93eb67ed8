#pragma once
// IntrusiveList: a list whose links live in its elements, so that linking never allocates.

#include <cstddef>

#include "core/base/check.h"

namespace infinistore {

// Unlinked while `next` is null.  Moving or copying a linked element would break its list.
template <class T>
struct ListHook {
  T* prev = nullptr;
  T* next = nullptr;

  bool is_linked() const noexcept { return next != nullptr; }
};

// Circular through the elements: the front's prev is the back.
template <class T, ListHook<T> T::* hook>
class IntrusiveList {
 public:
  bool empty() const noexcept { return front_ == nullptr; }
  std::size_t size() const noexcept { return size_; }
  T& front() noexcept { return *front_; }
  const T& front() const noexcept { return *front_; }

  void push_back(T& element) noexcept {
    insert_after(empty() ? nullptr : (front_->*hook).prev, element);
  }

  // nullptr: before all others.
  void insert_after(T* before, T& element) noexcept {
    KV_CHECK(!(element.*hook).is_linked());
    if (front_ == nullptr) {
      (element.*hook) = {&element, &element};
      front_ = &element;
    } else {
      T* const prev = before != nullptr ? before : (front_->*hook).prev;
      KV_CHECK(prev != nullptr);  // a linked one's
      T* const next = (prev->*hook).next;
      (element.*hook) = {prev, next};
      (prev->*hook).next = &element;
      (next->*hook).prev = &element;
      if (before == nullptr) front_ = &element;
    }
    ++size_;
  }

  void remove(T& element) noexcept {
    KV_CHECK((element.*hook).is_linked());
    T* prev = (element.*hook).prev;
    T* next = (element.*hook).next;
    (prev->*hook).next = next;
    (next->*hook).prev = prev;
    if (front_ == &element) front_ = next == &element ? nullptr : next;
    (element.*hook) = {};
    --size_;
  }

  template <class Body>
  void for_each(Body body) const {
    if (front_ == nullptr) return;
    T* element = front_;
    do {
      T* next = (element->*hook).next;
      body(*element);
      element = next;
    } while (element != front_);
  }

 private:
  T* front_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace infinistore
