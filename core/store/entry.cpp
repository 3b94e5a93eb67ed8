#include "core/store/entry.h"

#include <cstring>

#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/memory/small_heap.h"

namespace infinistore {

namespace {

constexpr std::size_t bytes_of(std::size_t key_bytes, bool has_turn) noexcept {
  return has_turn ? Entry::turn_offset(key_bytes) + sizeof(Turn) : sizeof(Entry) + key_bytes;
}
static_assert(bytes_of(kKeyBytesMax, true) <= kSmallBytesMax);

}  // namespace

void EntryEnd::operator()(Entry* entry) const noexcept {
  const std::size_t bytes = bytes_of(entry->key_bytes, entry->has_turn);
  if (entry->has_turn) std::destroy_at(&entry->turn());
  std::destroy_at(entry);
  small_free(entry, bytes);
}

EntryPtr make_entry(const KeyRef& ref, bool has_turn) {
  KV_CHECK(ref.key.size() <= kKeyBytesMax);
  void* memory = small_alloc(bytes_of(ref.key.size(), has_turn));
  EntryPtr entry(std::construct_at(static_cast<Entry*>(memory)));
  std::memcpy(static_cast<std::byte*>(memory) + sizeof(Entry), ref.key.data(), ref.key.size());
  entry->hash = ref.hash;
  entry->space = ref.space;
  entry->key_bytes = static_cast<std::uint8_t>(ref.key.size());
  entry->has_turn = has_turn;
  if (has_turn) std::construct_at(&entry->turn())->entry = entry.get();
  return entry;
}

}  // namespace infinistore
