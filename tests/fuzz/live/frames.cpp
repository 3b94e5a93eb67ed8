#include "tests/fuzz/live/frames.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "core/base/limits.h"

namespace infinistore::fuzz {
namespace {

constexpr std::array<std::uint64_t, 18> kOdd = {
    0,          1,          7,        8,        4095,     4096,           4097,
    65535,      65536,      1u << 20, 1u << 24, 1u << 30, (1u << 30) + 1, 1ull << 32,
    1ull << 40, 1ull << 63, ~0ull,    ~0ull - 7};

std::uint64_t usual_size(std::string_view key) {
  constexpr std::array<std::uint64_t, 12> kSizes = {1,   7,    8,    40,   100,   256,
                                                    600, 1000, 4096, 5000, 16384, 40000};
  return kSizes[std::hash<std::string_view>{}(key) % kSizes.size()];
}

std::vector<std::string_view> views(const std::vector<std::string>& keys) {
  return {keys.begin(), keys.end()};
}

}  // namespace

std::uint64_t FrameMaker::odd_number() {
  return one_in(3) ? random_() >> number(64) : kOdd[number(kOdd.size())];
}

std::size_t FrameMaker::key_count() {
  if (one_in(3000)) return kBatchKeysMax - number(2);
  return 1 + number(one_in(10) ? 60 : 6);
}

std::vector<std::string> FrameMaker::keys(std::size_t count) {
  std::vector<std::string> all(count);
  for (auto& key : all) {
    const auto form = number(20);
    if (form < 14) {
      key = "k" + std::to_string(number(600));
      continue;
    }
    key.resize(form < 17 ? 1 : form < 19 ? 1 + number(40) : kKeyBytesMax);
    key = text_of(noise(key.size()));
  }
  return all;
}

WireRanges FrameMaker::ranges(const std::vector<std::string>& keys, bool is_put) {
  WireRanges made;
  const bool is_uniform = one_in(3);
  made.items.resize(is_uniform ? 1 : keys.size());
  for (std::size_t i = 0; i < made.items.size(); ++i) {
    auto& range = made.items[i];
    const auto size = usual_size(keys[i]);
    const auto form = number(40);
    if (form < 28) {  // the whole value
      range = {is_put || one_in(2) ? size : 0, 0, size};
    } else if (form < 36) {  // an eighth of it: a staged value
      const auto part = std::max<std::uint64_t>(size / 8, 1);
      range = {is_put || one_in(2) ? size : 0, part * number(9), part};
    } else {
      range = {odd_number(), one_in(2) ? 0 : odd_number(), odd_number()};
    }
  }
  return made;
}

Body FrameMaker::put(std::vector<std::string>& names, WireRanges& wanted) {
  names = keys(key_count());
  wanted = ranges(names, true);
  const auto on_exists = one_in(4)   ? OnExists::kReplace
                         : one_in(6) ? OnExists::kCopy
                                     : OnExists::kKeep;
  PutRequest request{.on_exists = on_exists, .keys = views(names), .ranges = wanted};
  std::vector<std::string> parents;
  if (one_in(4)) {
    parents = keys(names.size());
    for (auto& parent : parents) {
      if (one_in(3)) parent.clear();
    }
    request.parents = views(parents);
    for (std::size_t i = 0; i < names.size(); ++i) {
      request.depths.push_back(static_cast<std::uint32_t>(odd_number()));
    }
  }
  return encode(request);
}

Body FrameMaker::get(std::size_t& count) {
  const auto names = keys(key_count());
  count = names.size();
  GetRequest request{.wait_ms = 0, .lease_id = one_in(5) ? odd_number() : 0, .keys = views(names)};
  if (one_in(8)) request.wait_ms = static_cast<std::uint32_t>(odd_number());
  request.ranges = ranges(names, false);
  return encode(request);
}

Body FrameMaker::match() {
  const auto group = static_cast<std::uint32_t>(1 + number(3));
  const auto names = keys(group * number(8));
  MatchRequest request{.lease_ms = 0, .group = group, .keys = views(names)};
  if (names.empty() && one_in(2)) request.group = static_cast<std::uint32_t>(odd_number() | 1);
  if (one_in(3)) request.lease_ms = static_cast<std::uint32_t>(odd_number());
  return encode(request);
}

Body FrameMaker::keys_request(std::size_t& count) {
  const auto names = keys(one_in(20) ? 0 : key_count());
  count = names.size();
  return encode(KeysRequest{.keys = views(names)});
}

Body FrameMaker::lease(const std::vector<std::uint64_t>& known, std::size_t& count) {
  LeaseRequest request{.lease_ms = one_in(2) ? 0 : static_cast<std::uint32_t>(odd_number())};
  for (count = number(5); request.lease_ids.size() < count;) {
    const bool knows = !known.empty() && !one_in(4);
    request.lease_ids.push_back(knows ? known[number(known.size())] : odd_number());
  }
  return encode(request);
}

Body FrameMaker::hello(const Nonce& nonce) {
  const auto space = "fuzz-" + std::to_string(number(8));
  return encode(Hello{.version_min = static_cast<std::uint16_t>(number(2)),
                      .version_max = static_cast<std::uint16_t>(1 + number(9)),
                      .incarnation = random_(),
                      .nonce = nonce,
                      .space = space,
                      .client_name = "fuzz"});
}

Body FrameMaker::noise(std::size_t bytes) {
  Body made(bytes);
  for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
    const auto word = random_();
    std::memcpy(made.data() + at, &word, std::min(bytes - at, sizeof word));
  }
  return made;
}

std::array<std::byte, kHeaderBytes> FrameMaker::bad_header() {
  auto raw = encode_header({.opcode = static_cast<Opcode>(1 + number(kOpcodeLast)),
                            .flags = 0,
                            .request_id = random_(),
                            .body_bytes = 0,
                            .payload_bytes = 0},
                           {});
  const auto set = [&raw](std::size_t at, auto value) {
    std::memcpy(raw.data() + at, &value, sizeof value);
  };
  switch (number(8)) {
    case 0:
      set(number(4), static_cast<std::uint8_t>(0xA5));  // magic: none of its bytes is that
      break;
    case 1:
      set(4, static_cast<std::uint8_t>(2 + number(254)));  // version
      break;
    case 2:
      set(5, static_cast<std::uint8_t>(one_in(2) ? 0 : kOpcodeLast + 1 + number(200)));
      break;
    case 3:
      set(6, static_cast<std::uint16_t>(1u << (2 + number(14))));  // a flag that no opcode has
      break;
    case 4:
      set(20, static_cast<std::uint32_t>(1 + number(1u << 31)));  // sum
      break;
    case 5:
      set(16, static_cast<std::uint32_t>(kBodyBytesMax + 1 + number(1u << 31)));
      break;
    case 6:
      set(5, static_cast<std::uint8_t>(Opcode::kFill));
      set(24, kPayloadBytesMax + 1 + (random_() >> 2));
      break;
    default:
      set(5, static_cast<std::uint8_t>(Opcode::kPing));
      set(24, 1 + (random_() >> 1));  // a payload that PING has not
      break;
  }
  return raw;
}

Body FrameMaker::spoiled(Opcode opcode) {
  std::size_t count = 0;
  std::vector<std::string> names;
  WireRanges wanted;
  Body body;
  if (opcode == Opcode::kPut) body = put(names, wanted);
  if (opcode == Opcode::kGet) body = get(count);
  if (opcode == Opcode::kMatch) body = match();
  if (opcode == Opcode::kLease) body = lease({}, count);
  if (body.empty() && opcode != Opcode::kPing && opcode != Opcode::kStats) {
    body = keys_request(count);
  }
  const auto form = number(3);
  if (form == 0 && !body.empty()) {
    body.resize(number(body.size()));  // no prefix of a body is one
  } else if (form == 1 && body.size() >= 16 && opcode != Opcode::kLease) {
    const std::size_t at = opcode == Opcode::kGet     ? 12
                           : opcode == Opcode::kMatch ? 8
                           : opcode == Opcode::kPut   ? 4
                                                      : 0;
    const auto giant = static_cast<std::uint32_t>(kBatchKeysMax + 1 + number(1u << 31));
    std::memcpy(body.data() + at, &giant, sizeof giant);  // the count of keys
  } else {
    const auto more = noise(1 + number(40));
    body.insert(body.end(), more.begin(), more.end());
  }
  return body;
}

void FrameMaker::scramble(Body& frame) {
  for (auto changes = 1 + number(6); changes > 0 && !frame.empty(); --changes) {
    const auto at = number(frame.size());
    const auto place = frame.begin() + static_cast<std::ptrdiff_t>(at);
    switch (number(4)) {
      case 0:
        *place = static_cast<std::byte>(random_());
        break;
      case 1:
        *place ^= std::byte{1} << static_cast<int>(number(8));
        break;
      case 2:
        frame.insert(place, static_cast<std::byte>(random_()));
        break;
      default:
        frame.erase(place, place + static_cast<std::ptrdiff_t>(number(frame.size() - at)));
    }
  }
}

void append_frame(Body& to, const FrameHeader& header, Bytes body) {
  auto full = header;
  full.body_bytes = static_cast<std::uint32_t>(body.size());
  const auto raw = encode_header(full, body);
  to.insert(to.end(), raw.begin(), raw.end());
  to.insert(to.end(), body.begin(), body.end());
}

}  // namespace infinistore::fuzz
