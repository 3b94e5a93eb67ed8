// Fuzzes frame headers and the codec: whatever the bytes, decoding ends, and what it accepts is
// stable.  The first byte of an input says which message the others are, so that one execution
// decodes once.

#include <array>
#include <span>

#include "core/base/check.h"
#include "core/wire/codec.h"
#include "core/wire/frame.h"
#include "core/wire/message_samples.h"
#include "tests/fuzz/target.h"

namespace infinistore::fuzz {
namespace {

// Accepted once, a message must survive being said again.
template <class Decode>
void check(Bytes body, Decode decode) {
  const auto message = decode(body);
  if (!message) return;
  const Body again = encode(*message);
  const auto second = decode(Bytes(again));
  KV_CHECK(second.has_value());
  KV_CHECK(encode(*second) == again);
}

template <auto decode>
void plain(Bytes body) {
  check(body, decode);
}

// Of a message that looks different where extents travel.
template <auto decode, bool shared_memory>
void either(Bytes body) {
  check(body, [](Bytes bytes) { return decode(bytes, shared_memory); });
}

void header(Bytes bytes) {
  const auto header = decode_header(bytes);
  if (header) KV_CHECK(decode_header(encode_header(*header, {})) == header);
}

std::vector<Body> sample_headers() {
  std::vector<Body> all;
  for (std::uint8_t opcode = 1; opcode <= kOpcodeLast; ++opcode) {
    const auto raw = encode_header({.opcode = static_cast<Opcode>(opcode),
                                    .flags = 0,
                                    .request_id = opcode,
                                    .body_bytes = 8,
                                    .payload_bytes = 0},
                                   {});
    all.emplace_back(raw.begin(), raw.end());
  }
  return all;
}

struct Kind {
  void (*run)(Bytes body);
  std::vector<Body> (*samples)();
};

const std::array kKinds = {
    Kind{header, sample_headers},
    Kind{plain<decode_hello>, samples::hello},
    Kind{plain<decode_welcome>, samples::welcome},
    Kind{plain<decode_put>, samples::put},
    Kind{either<decode_grant, false>, [] { return samples::grant(false); }},
    Kind{either<decode_grant, true>, [] { return samples::grant(true); }},
    Kind{either<decode_fill, false>, [] { return samples::fill(false); }},
    Kind{either<decode_fill, true>, [] { return samples::fill(true); }},
    Kind{plain<decode_result>, samples::result},
    Kind{plain<decode_get>, samples::get},
    Kind{either<decode_data, false>, [] { return samples::data(false); }},
    Kind{either<decode_data, true>, [] { return samples::data(true); }},
    Kind{plain<decode_match>, samples::match},
    Kind{plain<decode_matched>, samples::matched},
    Kind{plain<decode_keys>, samples::keys},
    Kind{plain<decode_lease>, samples::lease},
    Kind{plain<decode_counters>, samples::counters},
    Kind{plain<decode_error>, samples::error},
};

}  // namespace

std::vector<Input> seeds() {
  std::vector<Input> all;
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
    for (const auto& body : kKinds[kind].samples()) {
      Input input{static_cast<std::byte>(kind)};
      input.insert(input.end(), body.begin(), body.end());
      all.push_back(std::move(input));
    }
  }
  return all;
}

}  // namespace infinistore::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using infinistore::fuzz::kKinds;
  if (size == 0) return 0;
  // A copy of the exact size: AddressSanitizer sees a read that goes one byte too far.
  const std::vector<std::byte> body(reinterpret_cast<const std::byte*>(data) + 1,
                                    reinterpret_cast<const std::byte*>(data) + size);
  kKinds[data[0] % kKinds.size()].run(body);
  return 0;
}
