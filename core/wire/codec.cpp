#include "core/wire/codec.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include "core/base/check.h"
#include "core/base/limits.h"

namespace infinistore {
namespace {

class Writer {
 public:
  explicit Writer(std::size_t expected) : out_(expected) {}

  template <class T>
  void number(T value) {
    static_assert(std::is_unsigned_v<T>);
    raw(&value, sizeof value);
  }
  void raw(const void* data, std::size_t size) {
    if (size == 0) return;
    if (out_.size() - size_ < size) out_.resize(2 * out_.size() + size);
    std::memcpy(out_.data() + size_, data, size);
    size_ += size;
  }
  void text16(std::string_view text) {
    KV_CHECK(text.size() <= std::numeric_limits<std::uint16_t>::max());
    number(static_cast<std::uint16_t>(text.size()));
    raw(text.data(), text.size());
  }
  void count(std::size_t value) { number(static_cast<std::uint32_t>(value)); }
  void texts8(std::span<const std::string_view> texts) {
    for (const auto text : texts) number(static_cast<std::uint8_t>(text.size()));
    for (const auto text : texts) raw(text.data(), text.size());
  }
  void keys(std::span<const std::string_view> keys) {
    KV_CHECK(keys.size() <= kBatchKeysMax);
    count(keys.size());
    texts8(keys);
  }
  void ranges(const WireRanges& ranges) {
    const bool uniform = ranges.items.size() == 1;
    number(static_cast<std::uint8_t>(uniform ? 0 : 1));
    for (const auto& range : ranges.items) number(range.value_bytes);
    for (const auto& range : ranges.items) number(range.value_offset);
    for (const auto& range : ranges.items) number(range.bytes);
  }
  void outcomes(std::span<const Code> codes) {
    count(codes.size());
    for (const auto code : codes) number(static_cast<std::uint8_t>(code));
  }
  void extents(std::span<const Extents> items) {
    for (const auto& item : items) number(static_cast<std::uint16_t>(item.size()));
    for (const auto& item : items) {
      for (const auto& extent : item) {
        number(extent.region);
        number(std::uint32_t{0});
        number(extent.offset);
        number(extent.bytes);
      }
    }
  }
  Body take() {
    out_.resize(size_);
    return std::move(out_);
  }

 private:
  Body out_;  // longer than what is written, mostly by nothing
  std::size_t size_ = 0;
};

// Reads in order; once anything is off, everything after is zero and done() is false.
class Reader {
 public:
  explicit Reader(Bytes body) : left_(body) {}

  template <class T>
  T number() {
    T value{};
    if (left_.size() < sizeof value) {
      fail();
      return value;
    }
    std::memcpy(&value, left_.data(), sizeof value);
    left_ = left_.subspan(sizeof value);
    return value;
  }
  std::string_view text(std::size_t size) {
    if (left_.size() < size) {
      fail();
      return {};
    }
    const auto text = text_of(left_.first(size));
    left_ = left_.subspan(size);
    return text;
  }
  std::string_view text16(std::size_t max) {
    const auto size = number<std::uint16_t>();
    if (size > max) fail();
    return ok_ ? text(size) : std::string_view{};
  }
  template <class Array>
  Array array() {
    Array value{};
    const auto bytes = text(value.size());
    if (ok_) std::memcpy(value.data(), bytes.data(), value.size());
    return value;
  }
  void zero(std::uint64_t value) {
    if (value != 0) fail();
  }
  // A count of items that take at least `item_bytes` each: never more than the body can hold.
  std::size_t count(std::size_t max, std::size_t item_bytes) {
    const std::size_t value = number<std::uint32_t>();
    if (value > max || value * item_bytes > left_.size()) fail();
    return ok_ ? value : 0;
  }
  std::vector<std::string_view> texts8(std::size_t count, std::size_t size_min) {
    const auto sizes = text(count);
    std::vector<std::string_view> texts;
    texts.reserve(sizes.size());
    for (const char raw : sizes) {
      const std::size_t size = static_cast<std::uint8_t>(raw);
      if (size < size_min) fail();
      texts.push_back(text(size));
      if (!ok_) return {};
    }
    return texts;
  }
  std::vector<std::string_view> keys() { return texts8(count(kBatchKeysMax, 2), 1); }
  WireRanges ranges(std::size_t key_count) {
    const auto form = number<std::uint8_t>();
    if (form > 1) fail();
    const std::size_t size = form == 0 ? 1 : key_count;
    if (!ok_ || left_.size() < size * 24) {
      fail();
      return {};
    }
    WireRanges ranges;
    ranges.items.resize(size);
    for (auto& range : ranges.items) range.value_bytes = number<std::uint64_t>();
    for (auto& range : ranges.items) range.value_offset = number<std::uint64_t>();
    for (auto& range : ranges.items) range.bytes = number<std::uint64_t>();
    return ranges;
  }
  std::vector<Code> outcomes() {
    const auto bytes = text(count(kBatchKeysMax, 1));
    std::vector<Code> codes;
    codes.reserve(bytes.size());
    for (const char raw : bytes) {
      const auto value = static_cast<std::uint8_t>(raw);
      if (value >= kCodeCount) fail();
      codes.push_back(static_cast<Code>(value));
    }
    return codes;
  }
  std::vector<Extents> extents(std::size_t items) {
    if (left_.size() < items * 2) fail();
    if (!ok_) return {};
    std::vector<Extents> all(items);
    std::size_t total = 0;
    for (auto& item : all) {
      const std::size_t size = number<std::uint16_t>();
      if (size == 0) fail();
      total += size;
      if (total * 24 > left_.size()) fail();
      if (!ok_) return {};
      item.resize(size);
    }
    for (auto& item : all) {
      for (auto& extent : item) {
        extent.region = number<std::uint32_t>();
        zero(number<std::uint32_t>());
        extent.offset = number<std::uint64_t>();
        extent.bytes = number<std::uint64_t>();
      }
    }
    return all;
  }
  void require(bool condition) {
    if (!condition) fail();
  }

  template <class Message>
  std::optional<Message> finish(Message message) {
    if (!ok_ || !left_.empty()) return std::nullopt;
    return message;
  }
  bool ok() const { return ok_; }

 private:
  void fail() {
    ok_ = false;
    left_ = {};
  }

  Bytes left_;
  bool ok_ = true;
};

std::size_t ok_count(std::span<const Code> outcomes) {
  std::size_t count = 0;
  for (const auto code : outcomes) count += code == Code::kOk ? 1 : 0;
  return count;
}

std::size_t text_bytes(std::span<const std::string_view> texts) {
  std::size_t bytes = 4 + texts.size();
  for (const auto text : texts) bytes += text.size();
  return bytes;
}

}  // namespace

Body encode(const Hello& m) {
  Writer w(96 + m.token.size() + m.space.size() + m.client_name.size());
  w.number(m.version_min);
  w.number(m.version_max);
  w.number(std::uint32_t{0});
  w.number(m.incarnation);
  w.raw(m.boot_id.data(), m.boot_id.size());
  w.raw(m.nonce.data(), m.nonce.size());
  w.text16(m.token);
  w.text16(m.space);
  w.text16(m.client_name);
  return w.take();
}

std::optional<Hello> decode_hello(Bytes body) {
  Reader r(body);
  Hello m;
  m.version_min = r.number<std::uint16_t>();
  m.version_max = r.number<std::uint16_t>();
  r.zero(r.number<std::uint32_t>());
  m.incarnation = r.number<std::uint64_t>();
  m.boot_id = r.array<BootId>();
  m.nonce = r.array<Nonce>();
  m.token = r.text16(kTokenBytesMax);
  m.space = r.text16(kNamespaceBytesMax);
  m.client_name = r.text16(kClientNameBytesMax);
  return r.finish(m);
}

Body encode(const Welcome& m) {
  Writer w(128 + m.unix_path.size() + 8 * m.region_bytes.size());
  w.number(m.version);
  w.number(std::uint16_t{0});
  w.number(m.worker_index);
  w.number(m.incarnation);
  w.raw(m.boot_id.data(), m.boot_id.size());
  w.raw(m.nonce.data(), m.nonce.size());
  w.number(m.pool_bytes);
  w.number(m.capabilities);
  w.text16(m.unix_path);
  w.text16(m.server_version);
  w.count(m.region_bytes.size());
  for (const auto bytes : m.region_bytes) w.number(bytes);
  return w.take();
}

std::optional<Welcome> decode_welcome(Bytes body) {
  Reader r(body);
  Welcome m;
  m.version = r.number<std::uint16_t>();
  r.zero(r.number<std::uint16_t>());
  m.worker_index = r.number<std::uint32_t>();
  m.incarnation = r.number<std::uint64_t>();
  m.boot_id = r.array<BootId>();
  m.nonce = r.array<Nonce>();
  m.pool_bytes = r.number<std::uint64_t>();
  m.capabilities = r.number<std::uint64_t>();
  m.unix_path = r.text16(kNamespaceBytesMax);
  m.server_version = r.text16(kClientNameBytesMax);
  m.region_bytes.resize(r.count(kRegionsMax, 8));
  for (auto& bytes : m.region_bytes) bytes = r.number<std::uint64_t>();
  return r.finish(std::move(m));
}

Body encode(const PutRequest& m) {
  Writer w(64 + text_bytes(m.keys) + text_bytes(m.parents) + 24 * m.ranges.items.size() +
           4 * m.depths.size());
  w.number(static_cast<std::uint8_t>(m.on_exists));
  w.number(static_cast<std::uint8_t>(m.parents.empty() ? 0 : 1));
  w.number(std::uint16_t{0});
  w.keys(m.keys);
  w.ranges(m.ranges);
  if (!m.parents.empty()) {
    KV_CHECK(m.parents.size() == m.keys.size() && m.depths.size() == m.keys.size());
    w.texts8(m.parents);
    for (const auto depth : m.depths) w.number(depth);
  }
  return w.take();
}

std::optional<PutRequest> decode_put(Bytes body) {
  Reader r(body);
  PutRequest m;
  const auto on_exists = r.number<std::uint8_t>();
  const auto has_chain = r.number<std::uint8_t>();
  r.require(on_exists <= kOnExistsLast && has_chain <= 1);
  r.zero(r.number<std::uint16_t>());
  m.on_exists = static_cast<OnExists>(on_exists);
  m.keys = r.keys();
  r.require(!m.keys.empty());
  m.ranges = r.ranges(m.keys.size());
  if (r.ok() && has_chain == 1) {
    m.parents = r.texts8(m.keys.size(), 0);
    if (r.ok()) m.depths.resize(m.keys.size());
    for (auto& depth : m.depths) depth = r.number<std::uint32_t>();
  }
  return r.finish(std::move(m));
}

Body encode(const GrantReply& m) {
  Writer w(16 + m.outcomes.size() + 32 * m.extents.size());
  w.outcomes(m.outcomes);
  w.extents(m.extents);
  return w.take();
}

std::optional<GrantReply> decode_grant(Bytes body, bool shared_memory) {
  Reader r(body);
  GrantReply m;
  m.outcomes = r.outcomes();
  if (shared_memory) m.extents = r.extents(ok_count(m.outcomes));
  return r.finish(std::move(m));
}

Body encode(const FillRequest& m) {
  Writer w(4 + 8 * m.checksums.size());
  w.number(m.granted_count);
  for (const auto checksum : m.checksums) w.number(checksum);
  return w.take();
}

std::optional<FillRequest> decode_fill(Bytes body, bool shared_memory) {
  Reader r(body);
  FillRequest m;
  m.granted_count =
      static_cast<std::uint32_t>(r.count(kBatchKeysMax, shared_memory ? sizeof(std::uint64_t) : 0));
  if (shared_memory) m.checksums.resize(m.granted_count);
  for (auto& checksum : m.checksums) checksum = r.number<std::uint64_t>();
  return r.finish(std::move(m));
}

Body encode(const ResultReply& m) {
  Writer w(4 + m.outcomes.size());
  w.outcomes(m.outcomes);
  return w.take();
}

std::optional<ResultReply> decode_result(Bytes body) {
  Reader r(body);
  ResultReply m;
  m.outcomes = r.outcomes();
  return r.finish(std::move(m));
}

Body encode(const GetRequest& m) {
  Writer w(32 + text_bytes(m.keys) + 24 * m.ranges.items.size());
  w.number(m.wait_ms);
  w.number(m.lease_id);
  w.keys(m.keys);
  w.ranges(m.ranges);
  return w.take();
}

std::optional<GetRequest> decode_get(Bytes body) {
  Reader r(body);
  GetRequest m;
  m.wait_ms = r.number<std::uint32_t>();
  m.lease_id = r.number<std::uint64_t>();
  m.keys = r.keys();
  r.require(!m.keys.empty());
  m.ranges = r.ranges(m.keys.size());
  return r.finish(std::move(m));
}

Body encode(const DataReply& m) {
  Writer w(16 + m.outcomes.size() + 24 * m.found.size() + 32 * m.extents.size());
  w.outcomes(m.outcomes);
  for (const auto& item : m.found) {
    w.number(item.value_bytes);
    w.number(item.bytes);
    w.number(item.checksum);
  }
  w.extents(m.extents);
  return w.take();
}

std::optional<DataReply> decode_data(Bytes body, bool shared_memory) {
  Reader r(body);
  DataReply m;
  m.outcomes = r.outcomes();
  if (r.ok()) m.found.resize(ok_count(m.outcomes));
  for (auto& item : m.found) {
    item.value_bytes = r.number<std::uint64_t>();
    item.bytes = r.number<std::uint64_t>();
    item.checksum = r.number<std::uint64_t>();
  }
  if (r.ok() && shared_memory) m.extents = r.extents(m.found.size());
  return r.finish(std::move(m));
}

Body encode(const MatchRequest& m) {
  Writer w(16 + text_bytes(m.keys));
  w.number(m.lease_ms);
  w.number(m.group);
  w.keys(m.keys);
  return w.take();
}

std::optional<MatchRequest> decode_match(Bytes body) {
  Reader r(body);
  MatchRequest m;
  m.lease_ms = r.number<std::uint32_t>();
  m.group = r.number<std::uint32_t>();
  r.require(m.group >= 1);
  m.keys = r.keys();
  r.require(m.group >= 1 && m.keys.size() % m.group == 0);
  return r.finish(std::move(m));
}

Body encode(const MatchedReply& m) {
  Writer w(16);
  w.number(m.blocks);
  w.number(std::uint32_t{0});
  w.number(m.lease_id);
  return w.take();
}

std::optional<MatchedReply> decode_matched(Bytes body) {
  Reader r(body);
  MatchedReply m;
  m.blocks = r.number<std::uint32_t>();
  r.zero(r.number<std::uint32_t>());
  m.lease_id = r.number<std::uint64_t>();
  return r.finish(m);
}

Body encode(const KeysRequest& m) {
  Writer w(8 + text_bytes(m.keys));
  w.keys(m.keys);
  return w.take();
}

std::optional<KeysRequest> decode_keys(Bytes body) {
  Reader r(body);
  KeysRequest m;
  m.keys = r.keys();
  return r.finish(std::move(m));
}

Body encode(const LeaseRequest& m) {
  Writer w(8 + 8 * m.lease_ids.size());
  w.number(m.lease_ms);
  w.count(m.lease_ids.size());
  for (const auto id : m.lease_ids) w.number(id);
  return w.take();
}

std::optional<LeaseRequest> decode_lease(Bytes body) {
  Reader r(body);
  LeaseRequest m;
  m.lease_ms = r.number<std::uint32_t>();
  m.lease_ids.resize(r.count(kBatchKeysMax, 8));
  for (auto& id : m.lease_ids) id = r.number<std::uint64_t>();
  return r.finish(std::move(m));
}

Body encode(const CountersReply& m) {
  Writer w(4 + 32 * m.counters.size());
  w.count(m.counters.size());
  for (const auto& counter : m.counters) {
    KV_CHECK(counter.name.size() <= kKeyBytesMax);
    w.number(static_cast<std::uint8_t>(counter.name.size()));
    w.raw(counter.name.data(), counter.name.size());
    w.number(counter.value);
  }
  return w.take();
}

std::optional<CountersReply> decode_counters(Bytes body) {
  Reader r(body);
  CountersReply m;
  m.counters.resize(r.count(kBatchKeysMax, 9));
  for (auto& counter : m.counters) {
    counter.name = r.text(r.number<std::uint8_t>());
    counter.value = r.number<std::uint64_t>();
  }
  return r.finish(std::move(m));
}

Body encode(const ErrorReply& m) {
  Writer w(8 + m.message.size());
  w.number(static_cast<std::uint16_t>(m.code));
  w.text16(m.message.substr(0, kErrorMessageBytesMax));
  return w.take();
}

std::optional<ErrorReply> decode_error(Bytes body) {
  Reader r(body);
  ErrorReply m;
  const auto code = r.number<std::uint16_t>();
  r.require(code < kCodeCount);
  m.code = static_cast<Code>(code);
  m.message = r.text16(kErrorMessageBytesMax);
  return r.finish(m);
}

}  // namespace infinistore
