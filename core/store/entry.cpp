#include "core/store/entry.h"

#include <cstring>

#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/memory/small_heap.h"

namespace infinistore {

static_assert(sizeof(Entry) + kKeyBytesMax <= kSmallBytesMax);

void EntryEnd::operator()(Entry* entry) const noexcept {
  const std::size_t bytes = sizeof(Entry) + entry->key_bytes;
  std::destroy_at(entry);
  small_free(entry, bytes);
}

EntryPtr make_entry(const KeyRef& ref) {
  KV_CHECK(ref.key.size() <= kKeyBytesMax);
  void* memory = small_alloc(sizeof(Entry) + ref.key.size());
  EntryPtr entry(std::construct_at(static_cast<Entry*>(memory)));
  std::memcpy(static_cast<std::byte*>(memory) + sizeof(Entry), ref.key.data(), ref.key.size());
  entry->hash = ref.hash;
  entry->space = ref.space;
  entry->key_bytes = static_cast<std::uint8_t>(ref.key.size());
  return entry;
}

}  // namespace infinistore
