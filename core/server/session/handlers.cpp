// One function an opcode: from the decoded request to its answer.

#include <algorithm>
#include <limits>
#include <utility>

#include "core/server/session/session.h"
#include "core/wire/codec.h"
#include "core/wire/utf8.h"

namespace infinistore {
namespace {

constexpr std::string_view kReadsOnly =
    "this session may only read: write with a token that allows it, connected without read_only";

// What a tenant may ask: of each, its handler sees to it that nothing of others is touched.
bool is_within_a_namespace(Opcode opcode) noexcept {
  switch (opcode) {
    case Opcode::kHello:
    case Opcode::kPut:
    case Opcode::kGet:
    case Opcode::kMatch:
    case Opcode::kExists:
    case Opcode::kErase:
    case Opcode::kLease:
    case Opcode::kAbort:
    case Opcode::kStats:
    case Opcode::kPing:
    case Opcode::kSuspect:
      return true;
    default:
      return false;
  }
}

// What changes what others find.  SUSPECT does: a value that is damaged is dropped.
bool writes(Opcode opcode) noexcept {
  return opcode == Opcode::kPut || opcode == Opcode::kErase || opcode == Opcode::kAbort ||
         opcode == Opcode::kSuspect;
}

}  // namespace

bool Session::handle(const FrameHeader& header, Bytes body) {
  if (caller_.tenant != nullptr && !is_within_a_namespace(header.opcode)) {
    refuse(Code::kUnauthorized, "this is about the whole server, and the token is a tenant's");
    return true;
  }
  if (reads_only_ && writes(header.opcode)) {
    fail_request(header.request_id, Code::kUnauthorized, kReadsOnly);
    return true;
  }
  switch (header.opcode) {
    case Opcode::kHello:
      return hello(header, body);
    case Opcode::kPut:
      return put(header, body);
    case Opcode::kGet:
      return get(header, body);
    case Opcode::kMatch:
      return match(header, body);
    case Opcode::kExists:
      return exists(header, body);
    case Opcode::kErase:
      return erase(header, body);
    case Opcode::kLease:
      return lease(header, body);
    case Opcode::kAbort:
      return abort(header, body);
    case Opcode::kStats:
      return stats(header, body);
    case Opcode::kPing:
      return ping(header, body);
    case Opcode::kSuspect:
      return suspect(header, body);
    case Opcode::kAttach:
      return attach(header, body);
    default:
      return false;  // the server's own, or the transport's
  }
}

// Who it is, before anything is told to it.
Error Session::admit(const Hello& hello) {
  if (hello.version_min > kProtocolVersion || hello.version_max < kProtocolVersion) {
    return {Code::kVersion, "this server speaks version " + std::to_string(kProtocolVersion) +
                                " of the protocol only; the client asks for " +
                                std::to_string(hello.version_min) + " to " +
                                std::to_string(hello.version_max)};
  }
  const auto caller = identify(context_.options, hello.token);
  if (!caller) return {Code::kUnauthorized, "the token is wrong or missing"};
  if (is_shared_memory_ && caller->tenant != nullptr) {
    return {Code::kUnauthorized,
            "the pool's memory holds values of others too: a tenant's token is for TCP only"};
  }
  if (is_shared_memory_ && !equals_secret(hello.nonce, context_.identity.nonce)) {
    return {Code::kUnauthorized, "the nonce is not of this server: connect over TCP first"};
  }
  if (context_.is_draining) return {Code::kDraining, "the server is going away"};
  // It is shown, told to other nodes and asked for as text.
  if (!is_utf8(hello.space)) return {Code::kInvalid, "the namespace is not UTF-8; give it as text"};
  caller_ = *caller;
  return {Code::kOk, {}};
}

bool Session::hello(const FrameHeader& header, Bytes body) {
  const auto request = decode_hello(body);
  if (!request) return false;
  if (auto refusal = admit(*request); refusal.code != Code::kOk) {
    if (refusal.code == Code::kUnauthorized) host_.metrics().sessions_unauthorized.add();
    refuse(refusal.code, std::move(refusal.message));
    return true;
  }
  const auto space = context_.store.intern(space_of(caller_, request->space));
  if (!space) {
    const auto most = caller_.tenant == nullptr ? kNamespacesMax : kNamespacesPerOwnerMax;
    refuse(Code::kOverloaded, "there are " + std::to_string(most) +
                                  " namespaces, which is all that the server keeps until it "
                                  "starts anew");
    return true;
  }
  reads_only_ = caller_.reads_only || (header.flags & kFlagHelloReadOnly) != 0;
  space_ = *space;
  space_use_ = &context_.store.use_of(space_);
  state_ = State::kServes;
  connection_->welcome(
      header.request_id,
      {.version = kProtocolVersion,
       .worker_index = host_.index(),
       .incarnation = context_.identity.incarnation,
       .boot_id = context_.identity.boot_id,
       .nonce = context_.identity.nonce,
       .pool_bytes = context_.store.pool().capacity_bytes(),
       .capabilities = reads_only_ ? Welcome::kReadOnly : 0,
       .unix_path = caller_.tenant == nullptr ? context_.options.unix_socket : std::string_view{},
       .server_version = context_.options.version,
       .region_bytes = {}});
  return true;
}

// Whether the request may take space in our tables; if not, it has been answered.
bool Session::may_begin(const FrameHeader& header) {
  note_use();
  if (context_.is_draining) {
    fail_request(header.request_id, Code::kDraining, "the server is going away");
    return false;
  }
  if (open_count() >= kSessionRequestsMax) {
    host_.metrics().overloads.add();
    fail_request(header.request_id, Code::kOverloaded,
                 "more than " + std::to_string(kSessionRequestsMax) +
                     " requests are open on this connection; wait for their answers");
    return false;
  }
  return true;
}

bool Session::put(const FrameHeader& header, Bytes body) {
  const auto request = decode_put(body);
  if (!request) return false;
  if (!may_begin(header)) return true;
  puts_.begin(*connection_, header.request_id, space_, *request);
  if (puts_.is_busy() || puts_.has_staged()) arm_progress(context_.clock.now());
  return true;
}

bool Session::get(const FrameHeader& header, Bytes body) {
  auto request = decode_get(body);
  if (!request) return false;
  if (!may_begin(header)) return true;
  const Nanos now = context_.clock.now();
  const Nanos wait = request->wait_ms * kMillisecond;
  gets_.begin(*connection_, header, body, space_,
              {.worker_index = host_.index(), .session_id = id_}, std::move(*request));
  if (!gets_.is_busy()) return true;
  arm_progress(now);
  if (wait > 0) host_.arm(*this, now + wait);
  return true;
}

bool Session::match(const FrameHeader& header, Bytes body) {
  const auto request = decode_match(body);
  if (!request) return false;
  if (context_.is_draining) {
    fail_request(header.request_id, Code::kDraining, "the server is going away");
    return true;
  }
  note_use();
  std::vector<Lease> pins;
  auto* wanted = request->lease_ms > 0 ? &pins : nullptr;
  const auto blocks = context_.store.match_prefix(space_, request->keys, request->group, wanted);
  MatchedReply reply{.blocks = static_cast<std::uint32_t>(blocks), .lease_id = 0};
  if (!pins.empty()) {
    const Nanos deadline = lease_deadline(request->lease_ms);
    reply.lease_id = context_.leases.create(std::move(pins), deadline, id_);
    if (reply.lease_id == 0) {
      host_.metrics().overloads.add();
      fail_request(header.request_id, Code::kOverloaded,
                   "too many keys are leased; release some leases");
      return true;
    }
    context_.on_lease_deadline(deadline);
  }
  connection_->send(Opcode::kMatched, header.request_id, encode(reply));
  return true;
}

Nanos Session::lease_deadline(std::uint32_t lease_ms) const {
  const auto longest =
      static_cast<Nanos>(context_.options.lease_max_s * static_cast<double>(kSecond));
  return context_.clock.now() + std::min<Nanos>(lease_ms * kMillisecond, longest);
}

bool Session::exists(const FrameHeader& header, Bytes body) {
  const auto request = decode_keys(body);
  if (!request) return false;
  const std::span keys(request->keys);
  std::vector<Code> outcomes;
  outcomes.reserve(keys.size());
  context_.store.for_each_expected(space_, keys, Expect::kExists, [&](std::size_t i) {
    outcomes.push_back(context_.store.exists(space_, keys[i]) ? Code::kOk : Code::kMissing);
  });
  answer(header.request_id, std::move(outcomes));
  return true;
}

bool Session::erase(const FrameHeader& header, Bytes body) {
  const auto request = decode_keys(body);
  if (!request) return false;
  std::vector<Code> outcomes;
  for (const auto key : request->keys) {
    outcomes.push_back(context_.store.erase(space_, key) ? Code::kOk : Code::kMissing);
  }
  answer(header.request_id, std::move(outcomes));
  return true;
}

bool Session::lease(const FrameHeader& header, Bytes body) {
  const auto request = decode_lease(body);
  if (!request) return false;
  std::vector<Code> outcomes;
  const Nanos deadline = lease_deadline(request->lease_ms);
  for (const auto lease_id : request->lease_ids) {
    outcomes.push_back(request->lease_ms == 0 ? context_.leases.release(lease_id, space_)
                                              : context_.leases.renew(lease_id, space_, deadline));
  }
  answer(header.request_id, std::move(outcomes));
  return true;
}

bool Session::abort(const FrameHeader& header, Bytes body) {
  const auto request = decode_keys(body);
  if (!request) return false;
  std::vector<Code> outcomes;
  for (const auto key : request->keys) outcomes.push_back(puts_.abort(key));
  answer(header.request_id, std::move(outcomes));
  return true;
}

bool Session::stats(const FrameHeader& header, Bytes body) {
  if (!body.empty()) return false;
  // The server's counters tell of all its clients: a tenant sees its own share.
  auto counters = caller_.tenant == nullptr ? context_.counters() : tenant_counters();
  connection_->send(Opcode::kCounters, header.request_id,
                    encode(CountersReply{.counters = std::move(counters)}));
  return true;
}

std::vector<Counter> Session::tenant_counters() const {
  const QuotaUse use = context_.store.quota_use(caller_.tenant->name);
  return {{"quota_bytes", caller_.tenant->quota_bytes},
          {"used_bytes", use.bytes},
          {"quota_evictions", use.evictions},
          {"quota_evicted_bytes", use.evicted_bytes}};
}

bool Session::suspect(const FrameHeader& header, Bytes body) {
  const auto request = decode_keys(body);
  if (!request) return false;
  if (!may_begin(header)) return true;
  suspects_.begin(header.request_id, space_, request->keys);
  look_at_suspects();
  return true;
}

bool Session::attach(const FrameHeader& header, Bytes body) {
  const auto endpoints = decode_endpoints(body);
  if (!endpoints) return false;
  connection_->attach(header.request_id, *endpoints);
  return true;
}

bool Session::ping(const FrameHeader& header, Bytes body) {
  if (!body.empty()) return false;
  answer(header.request_id, {});
  return true;
}

}  // namespace infinistore
