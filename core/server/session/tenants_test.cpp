#include "core/server/tenants.h"

#include <doctest/doctest.h>

#include "core/server/session/session_testing.h"

namespace infinistore {
namespace {

using testing::for_each_transport;
using testing::Harness;
using testing::Peer;
using Codes = std::vector<Code>;

constexpr std::uint64_t kQuota = 64 * 1024;

const std::vector<Tenant>& two_tenants() {
  static const std::vector<Tenant> tenants = {
      {.name = "a", .token = "token-a", .quota_bytes = kQuota},
      {.name = "b", .token = "token-b", .quota_bytes = 0}};
  return tenants;
}

Peer connect(Harness& harness, std::string_view token, std::string_view space = "x") {
  auto peer = harness.connect(false);
  REQUIRE(peer.hello(space, token).header.opcode == Opcode::kWelcome);
  return peer;
}

GetRequest whole(std::vector<std::string_view> keys, std::uint64_t bytes) {
  GetRequest request;
  request.keys = std::move(keys);
  request.ranges.items = {{0, 0, bytes}};
  return request;
}

}  // namespace

TEST_CASE("secrets are equal only if all of them is") {
  CHECK(equals_secret("abc", "abc"));
  CHECK_FALSE(equals_secret("abd", "abc"));
  CHECK_FALSE(equals_secret("ab", "abc"));
  CHECK_FALSE(equals_secret("abcabc", "abc"));  // the secret, twice
  CHECK_FALSE(equals_secret("", "abc"));
  CHECK_FALSE(equals_secret("abc", ""));
}

TEST_CASE("a token is of the server, of one tenant, or nobody's") {
  ServerOptions options{};
  CHECK(identify(options, "anything").has_value());  // open
  options.tenants = two_tenants();
  CHECK_FALSE(identify(options, "").has_value());  // tenants close it for those without a token
  CHECK(identify(options, "token-b")->tenant == &options.tenants[1]);
  options.token = "root";
  CHECK(identify(options, "root")->tenant == nullptr);
  CHECK(identify(options, "token-a")->tenant == &options.tenants[0]);
  CHECK_FALSE(identify(options, "token-c").has_value());
}

TEST_CASE("tenants that ask for one namespace get two, below their own names") {
  Harness harness("tcp", {.token = "root", .tenants = two_tenants()});
  auto a = connect(harness, "token-a");
  auto b = connect(harness, "token-b");
  CHECK(a.put({{"k", "of a"}}) == Codes{Code::kOk});
  CHECK(b.get(whole({"k"}, 4)).outcomes == Codes{Code::kMissing});
  CHECK(b.codes(Opcode::kExists, {"k"}) == Codes{Code::kMissing});
  CHECK(b.codes(Opcode::kErase, {"k"}) == Codes{Code::kMissing});
  CHECK(b.codes(Opcode::kSuspect, {"k"}) == Codes{Code::kMissing});
  // No name that it asks for leads out.
  for (const auto* space : {"a/x", "../a/x", "", "/a/x"}) {
    CHECK(connect(harness, "token-b", space).codes(Opcode::kExists, {"k"}) ==
          Codes{Code::kMissing});
  }
  CHECK(connect(harness, "token-a").codes(Opcode::kExists, {"k"}) == Codes{Code::kOk});
  // Who has the server's own token sees all.
  CHECK(connect(harness, "root", "a/x").get(whole({"k"}, 4)).found.at(0) == "of a");
}

TEST_CASE("a tenant can neither end nor use another's lease") {
  Harness harness("tcp", {.tenants = two_tenants()});
  auto a = connect(harness, "token-a");
  auto b = connect(harness, "token-b");
  CHECK(a.put({{"k", "of a"}}) == Codes{Code::kOk});
  const auto matched =
      a.call(Opcode::kMatch, encode(MatchRequest{.lease_ms = 10'000, .keys = {"k"}}));
  const auto lease_id = decode_matched(matched.body)->lease_id;
  REQUIRE(lease_id != 0);
  for (const std::uint32_t lease_ms : {0U, 5'000U}) {
    b.send(Opcode::kLease, encode(LeaseRequest{.lease_ms = lease_ms, .lease_ids = {lease_id}}));
    CHECK(b.result() == Codes{Code::kLeaseExpired});
  }
  CHECK(harness.leases().count() == 1);
}

TEST_CASE("a tenant's own oldest values leave for its quota, and others do not notice") {
  Harness harness("tcp", {.tenants = two_tenants()});
  auto a = connect(harness, "token-a");
  auto other = connect(harness, "token-a", "y");  // one quota for all of its namespaces
  auto b = connect(harness, "token-b");
  const std::string half(kQuota / 2, 'v');
  CHECK(b.put({{"1", half}, {"2", half}, {"3", half}}) == Codes{Code::kOk, Code::kOk, Code::kOk});
  CHECK(a.put({{"1", half}}) == Codes{Code::kOk});
  CHECK(a.put({{"2", half}}) == Codes{Code::kOk});
  CHECK(other.put({{"3", half}}) == Codes{Code::kOk});
  CHECK(a.codes(Opcode::kExists, {"1", "2"}) == Codes{Code::kMissing, Code::kOk});
  CHECK(other.codes(Opcode::kExists, {"3"}) == Codes{Code::kOk});
  CHECK(b.codes(Opcode::kExists, {"1", "2", "3"}) == Codes{Code::kOk, Code::kOk, Code::kOk});
  CHECK(harness.store().quota_use("a").bytes == kQuota);
  CHECK(harness.store().quota_use("a").evictions == 1);
  CHECK(harness.store().quota_use("b").evictions == 0);
  CHECK(harness.store().check_integrity() == "");
}

TEST_CASE("what can never be within a tenant's quota is refused, and nothing leaves for it") {
  Harness harness("tcp", {.tenants = two_tenants()});
  auto a = connect(harness, "token-a");
  const std::string half(kQuota / 2, 'v');
  CHECK(a.put({{"1", half}}) == Codes{Code::kOk});
  CHECK(a.put({{"large", std::string(kQuota + 1, 'v')}}) == Codes{Code::kTooLarge});
  // Of one request: what is being written does not leave for what comes behind it.
  CHECK(a.put({{"2", half}, {"3", half}, {"4", half}}) ==
        Codes{Code::kOk, Code::kOk, Code::kQuotaExceeded});
  CHECK(harness.store().quota_use("a").bytes == kQuota);
  CHECK(a.codes(Opcode::kErase, {"2"}) == Codes{Code::kOk});
  CHECK(harness.store().quota_use("a").bytes == kQuota / 2);
}

TEST_CASE("every way in which bytes leave gives the quota back") {
  Harness harness("tcp", {.tenants = two_tenants()});
  const std::string bytes(16 * 1024, 'v');
  auto a = connect(harness, "token-a");
  CHECK(a.put({{"kept", bytes}}) == Codes{Code::kOk});
  CHECK(a.put({{"kept", bytes}}, OnExists::kReplace) == Codes{Code::kOk});  // replaced
  CHECK(harness.store().quota_use("a").bytes == bytes.size());
  a.begin_put({{"aborted", bytes}});
  CHECK(harness.store().quota_use("a").bytes == 2 * bytes.size());
  a.hang_up();
  CHECK(harness.sessions_are(0));
  CHECK(harness.store().quota_use("a").bytes == bytes.size());
  harness.store().evict(bytes.size());
  CHECK(harness.store().quota_use("a").bytes == 0);
}

TEST_CASE("a tenant has no shared memory, and sees its share of the counters only") {
  Harness far("tcp", {.tenants = two_tenants()});
  auto a = connect(far, "token-a");
  const auto counters = decode_counters(a.call(Opcode::kStats, {}).body);
  REQUIRE(counters->counters.size() == 4);
  CHECK(counters->counters[0].name == "quota_bytes");
  CHECK(counters->counters[0].value == kQuota);
  auto fresh = far.connect(false);
  CHECK(decode_welcome(fresh.hello("x", "token-b").body)->unix_path.empty());

  Harness near("shm", {.tenants = two_tenants()});
  auto peer = near.connect(false);
  const auto refused = peer.hello("x", "token-a", near.identity().nonce);
  CHECK(refused.fds.empty());
  REQUIRE(refused.header.opcode == Opcode::kError);
  CHECK(decode_error(refused.body)->code == Code::kUnauthorized);
}

TEST_CASE("one tenant cannot use up the namespaces of all") {
  Harness harness("tcp", {.tenants = two_tenants()});
  for (std::size_t i = 0; i < kNamespacesPerOwnerMax; ++i) {
    REQUIRE(harness.store().intern("a/" + std::to_string(i)).has_value());
  }
  CHECK_FALSE(harness.store().intern("a/more").has_value());
  CHECK(harness.store().intern("a/1").has_value());
  CHECK(harness.store().intern("ab/1").has_value());
  auto peer = harness.connect(false);
  CHECK(decode_error(peer.hello("more", "token-a").body)->code == Code::kOverloaded);
}

}  // namespace infinistore
