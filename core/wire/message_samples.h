#pragma once
// Samples: bodies of every message, at their corners, for the tests and the fuzz driver.

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/limits.h"
#include "core/wire/codec.h"

namespace infinistore::samples {

inline Body key_body(std::initializer_list<std::string_view> keys) {
  return encode(KeysRequest{.keys = keys});
}

inline Body with_byte(Body body, std::size_t offset, std::uint8_t value) {
  body.at(offset) = std::byte{value};
  return body;
}

inline std::vector<Extents> some_extents() {
  return {{{0, 4096, 100}}, {{1, 0, 1u << 20}, {63, std::uint64_t{1} << 40, 1}}};
}

inline std::vector<Body> hello() {
  static const std::string long_token(kTokenBytesMax, 't');
  Hello full{.version_min = 1, .version_max = 9, .incarnation = 5, .boot_id = {}, .nonce = {}};
  full.boot_id.fill(std::byte{1});
  full.nonce.fill(std::byte{2});
  full.token = long_token;
  full.space = "tenant/model";
  full.client_name = "a client";
  return {encode(Hello{}), encode(full)};
}

inline std::vector<Body> welcome() {
  Welcome full{.version = 1, .worker_index = 3, .incarnation = 77};
  full.pool_bytes = std::uint64_t{1} << 40;
  full.capabilities = Welcome::kSharedMemory;
  full.unix_path = "/run/infinistore.sock";
  full.server_version = "0.1.0";
  full.region_bytes.assign(kRegionsMax, 1u << 30);
  return {encode(Welcome{}), encode(full)};
}

inline std::vector<Body> put() {
  PutRequest uniform{.keys = {"a", "b"}, .ranges = {{{10, 0, 10}}}};
  PutRequest columns{
      .on_exists = OnExists::kReplace, .keys = {"a", "bc"}, .ranges = {{{8, 0, 4}, {9, 1, 8}}}};
  PutRequest chained{.keys = {"a", "b"}, .ranges = {{{8, 0, 8}}}};
  PutRequest copy{.on_exists = OnExists::kCopy, .keys = {"a", "b"}, .ranges = {{{10, 0, 10}}}};
  chained.parents = {"", "a"};
  chained.depths = {0, 1};
  return {encode(uniform), encode(columns), encode(chained), encode(copy)};
}

inline std::vector<Body> grant(bool shared_memory) {
  GrantReply mixed{.outcomes = {Code::kOk, Code::kExists, Code::kOk}};
  if (shared_memory) mixed.extents = some_extents();
  return {encode(GrantReply{}), encode(mixed)};
}

inline std::vector<Body> fill(bool shared_memory) {
  FillRequest some{.granted_count = 2};
  if (shared_memory) some.checksums = {1, ~std::uint64_t{0}};
  return {encode(FillRequest{}), encode(some)};
}

inline std::vector<Body> result() {
  return {encode(ResultReply{}), encode(ResultReply{.outcomes = {Code::kOk, Code::kDraining}})};
}

inline std::vector<Body> get() {
  GetRequest some{.wait_ms = 100, .lease_id = 9, .keys = {"a", "b", "c"}};
  some.ranges.items = {{0, 0, 5}};
  GetRequest columns{.wait_ms = 0, .lease_id = 0, .keys = {"a", "b"}};
  columns.ranges.items = {{1, 2, 3}, {4, 5, 6}};
  return {encode(some), encode(columns)};
}

inline std::vector<Body> data(bool shared_memory) {
  DataReply mixed{.outcomes = {Code::kMissing, Code::kOk, Code::kOk},
                  .found = {{1, 2, 3}, {4, 5, 6}}};
  if (shared_memory) mixed.extents = some_extents();
  return {encode(DataReply{}), encode(mixed)};
}

inline std::vector<Body> match() {
  return {encode(MatchRequest{.lease_ms = 0, .group = 1, .keys = {}}),
          encode(MatchRequest{.lease_ms = 30'000, .group = 2, .keys = {"a", "b", "c", "d"}})};
}

inline std::vector<Body> matched() {
  return {encode(MatchedReply{}), encode(MatchedReply{.blocks = 4, .lease_id = 12})};
}

inline std::vector<Body> keys() {
  static const std::string long_key(kKeyBytesMax, 'k');
  return {key_body({}), key_body({"a", std::string_view("\0\xFF", 2), long_key})};
}

inline std::vector<Body> lease() {
  return {encode(LeaseRequest{}), encode(LeaseRequest{.lease_ms = 5, .lease_ids = {1, 2}})};
}

inline std::vector<Body> counters() {
  return {encode(CountersReply{}), encode(CountersReply{.counters = {{"keys", 1}, {"", 2}}})};
}

inline std::vector<Body> error() {
  return {encode(ErrorReply{}), encode(ErrorReply{.code = Code::kDraining, .message = "bye"})};
}

}  // namespace infinistore::samples
