#include "core/store/entry.h"

#include <cstring>

#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/memory/small_heap.h"

namespace infinistore {

namespace {

constexpr std::size_t bytes_of(std::size_t key_bytes, bool has_seat) noexcept {
  return has_seat ? Entry::seat_offset(key_bytes) + sizeof(Seat) : sizeof(Entry) + key_bytes;
}
static_assert(bytes_of(kKeyBytesMax, true) <= kSmallBytesMax);

}  // namespace

void EntryEnd::operator()(Entry* entry) const noexcept {
  const std::size_t bytes = bytes_of(entry->key_bytes, entry->has_seat);
  if (entry->has_seat) std::destroy_at(&entry->seat());
  std::destroy_at(entry);
  small_free(entry, bytes);
}

EntryPtr make_entry(const KeyRef& ref, bool has_seat) {
  KV_CHECK(ref.key.size() <= kKeyBytesMax);
  void* memory = small_alloc(bytes_of(ref.key.size(), has_seat));
  EntryPtr entry(std::construct_at(static_cast<Entry*>(memory)));
  std::memcpy(static_cast<std::byte*>(memory) + sizeof(Entry), ref.key.data(), ref.key.size());
  entry->hash = ref.hash;
  entry->space = ref.space;
  entry->key_bytes = static_cast<std::uint8_t>(ref.key.size());
  entry->has_seat = has_seat;
  if (has_seat) std::construct_at(&entry->seat())->entry = entry.get();
  return entry;
}

}  // namespace infinistore
