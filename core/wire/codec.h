#pragma once
// Codec: bodies to messages and back (docs/protocol.md).  No sockets; every bound is checked.
//
// decode_x returns nullopt for any body that is not exactly one well-formed message: short, long,
// over a bound, with a key of length 0, an outcome that is no code.  `shared_memory` says whether
// the connection carries extents.  Encoding trusts the caller: it splits batches to the bounds
// before.

#include <optional>
#include <vector>

#include "core/base/bytes.h"
#include "core/wire/message.h"

namespace infinistore {

using Body = std::vector<std::byte>;

Body encode(const Hello& message);
Body encode(const Welcome& message);
Body encode(const PutRequest& message);
Body encode(const GrantReply& message);
Body encode(const FillRequest& message);
Body encode(const ResultReply& message);
Body encode(const GetRequest& message);
Body encode(const DataReply& message);
Body encode(const MatchRequest& message);
Body encode(const MatchedReply& message);
Body encode(const KeysRequest& message);
Body encode(const LeaseRequest& message);
Body encode(const CountersReply& message);
Body encode(const ErrorReply& message);

std::optional<Hello> decode_hello(Bytes body);
std::optional<Welcome> decode_welcome(Bytes body);
std::optional<PutRequest> decode_put(Bytes body);
std::optional<GrantReply> decode_grant(Bytes body, bool shared_memory);
std::optional<FillRequest> decode_fill(Bytes body, bool shared_memory);
std::optional<ResultReply> decode_result(Bytes body);
std::optional<GetRequest> decode_get(Bytes body);
std::optional<DataReply> decode_data(Bytes body, bool shared_memory);
std::optional<MatchRequest> decode_match(Bytes body);
std::optional<MatchedReply> decode_matched(Bytes body);
std::optional<KeysRequest> decode_keys(Bytes body);
std::optional<LeaseRequest> decode_lease(Bytes body);
std::optional<CountersReply> decode_counters(Bytes body);
std::optional<ErrorReply> decode_error(Bytes body);

}  // namespace infinistore
