#include "core/store/entry.h"

#include <cstring>
#include <new>

#include "core/base/check.h"
#include "core/base/limits.h"

namespace infinistore {

void EntryEnd::operator()(Entry* entry) const noexcept {
  std::destroy_at(entry);
  ::operator delete(static_cast<void*>(entry));
}

EntryPtr make_entry(const KeyRef& ref) {
  KV_CHECK(ref.key.size() <= kKeyBytesMax);
  void* memory = ::operator new(sizeof(Entry) + ref.key.size());
  EntryPtr entry(std::construct_at(static_cast<Entry*>(memory)));
  std::memcpy(static_cast<std::byte*>(memory) + sizeof(Entry), ref.key.data(), ref.key.size());
  entry->hash = ref.hash;
  entry->space = ref.space;
  entry->key_bytes = static_cast<std::uint8_t>(ref.key.size());
  return entry;
}

}  // namespace infinistore
