// Sessions that may only read: as they asked, or by their token.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "core/server/session/session_testing.h"
#include "core/server/tenants.h"

namespace infinistore {
namespace {

using testing::for_each_transport;
using testing::Frame;
using testing::Harness;
using testing::Peer;
using Codes = std::vector<Code>;

constexpr std::string_view kToken = "of-writers";
constexpr std::string_view kReadToken = "of-readers";

struct Way {  // to become a reader
  std::string_view token;
  std::uint16_t flags;
};
constexpr Way kWays[] = {{kReadToken, 0}, {kToken, kFlagHelloReadOnly}};

Frame welcome(Harness& harness, Peer& peer, std::string_view token, std::uint16_t flags) {
  auto frame = peer.hello("x", token, harness.identity().nonce, flags);
  REQUIRE(frame.header.opcode == Opcode::kWelcome);
  return frame;
}

bool is_refused(const Frame& frame) {
  if (frame.header.opcode != Opcode::kError || frame.header.request_id == 0) return false;
  const auto error = decode_error(frame.body);
  return error && error->code == Code::kUnauthorized &&
         error->message.find("may only read") != std::string_view::npos;
}

GetRequest whole(std::string_view key, std::uint64_t bytes) {
  GetRequest request;
  request.keys = {key};
  request.ranges.items = {{0, 0, bytes}};
  return request;
}

PutRequest put_of(std::string_view key) {
  PutRequest request;
  request.on_exists = OnExists::kReplace;
  request.keys = {key};
  request.ranges.items = {{8, 0, 8}};
  return request;
}

template <class TestBody>
void for_each_reader(TestBody body) {
  for_each_transport([&](std::string_view transport) {
    for (const auto& way : kWays) {
      CAPTURE(way.token);
      Harness harness(transport,
                      {.token = std::string(kToken), .read_token = std::string(kReadToken)});
      auto writer = harness.connect(false);
      welcome(harness, writer, kToken, 0);
      REQUIRE(writer.put({{"k", "value"}}) == Codes{Code::kOk});
      auto reader = harness.connect(false);
      const auto frame = welcome(harness, reader, way.token, way.flags);
      CHECK((decode_welcome(frame.body)->capabilities & Welcome::kReadOnly) != 0);
      body(harness, writer, reader);
    }
  });
}

}  // namespace

TEST_CASE("whatever writes is refused a reader, request by request, and nothing is lost") {
  for_each_reader([](Harness& harness, Peer& writer, Peer& reader) {
    const Body keys = encode(KeysRequest{.keys = {"k"}});
    CHECK(is_refused(reader.call(Opcode::kPut, encode(put_of("k")))));
    CHECK(is_refused(reader.call(Opcode::kPut, encode(put_of("new")))));
    for (const auto opcode : {Opcode::kErase, Opcode::kAbort, Opcode::kSuspect}) {
      CAPTURE(static_cast<int>(opcode));
      CHECK(is_refused(reader.call(opcode, keys)));
    }
    CHECK(reader.get(whole("k", 5)).found == std::vector<std::string>{"value"});
    CHECK(writer.codes(Opcode::kExists, {"k", "new"}) == Codes{Code::kOk, Code::kMissing});
    CHECK(harness.sessions_are(2));
    CHECK(writer.codes(Opcode::kErase, {"k"}) == Codes{Code::kOk});
  });
}

TEST_CASE("a FILL that no grant came before has no effect") {
  for_each_reader([](Harness& harness, Peer& writer, Peer& reader) {
    const Body put = encode(put_of("k"));
    const auto id = reader.send(Opcode::kPut, put);
    REQUIRE(is_refused(*reader.receive()));
    const bool is_shared = reader.shares_memory();
    FillRequest fill{.granted_count = 1, .checksums = {}};
    if (is_shared) fill.checksums = {0};
    reader.send_as(id, Opcode::kFill, encode(fill), is_shared ? Body() : Body(16));
    CHECK(reader.call(Opcode::kPing, {}).header.opcode == Opcode::kResult);
    CHECK(harness.worker().metrics().late_messages.get() == 1);
    CHECK(writer.get(whole("k", 5)).found == std::vector<std::string>{"value"});
  });
}

TEST_CASE("a reader looks up, and holds what it found by a lease") {
  for_each_reader([](Harness&, Peer&, Peer& reader) {
    CHECK(reader.codes(Opcode::kExists, {"k", "none"}) == Codes{Code::kOk, Code::kMissing});
    const auto matched = decode_matched(
        reader.call(Opcode::kMatch, encode(MatchRequest{.lease_ms = 10'000, .keys = {"k", "none"}}))
            .body);
    REQUIRE(matched.has_value());
    CHECK(matched->blocks == 1);
    REQUIRE(matched->lease_id != 0);
    auto request = whole("k", 5);
    request.lease_id = matched->lease_id;
    CHECK(reader.get(request).found == std::vector<std::string>{"value"});
    for (const std::uint32_t lease_ms : {5'000U, 0U}) {
      reader.send(Opcode::kLease,
                  encode(LeaseRequest{.lease_ms = lease_ms, .lease_ids = {matched->lease_id}}));
      CHECK(reader.result() == Codes{Code::kOk});
    }
  });
}

TEST_CASE("the descriptors that a reader gets cannot be mapped for writing; a writer's can") {
  Harness harness("shm", {.token = std::string(kToken), .read_token = std::string(kReadToken)});
  const auto map_error = [](const Frame& frame) {
    REQUIRE_FALSE(frame.fds.empty());
    for (const auto& fd : frame.fds) {
      void* const base = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
      if (base == MAP_FAILED) return errno;
      ::munmap(base, 4096);
    }
    return 0;
  };
  auto writer = harness.connect(false);
  CHECK(map_error(welcome(harness, writer, kToken, 0)) == 0);
  for (const auto& way : kWays) {
    auto reader = harness.connect(false);
    CHECK(map_error(welcome(harness, reader, way.token, way.flags)) == EACCES);
  }
}

TEST_CASE("a token of readers closes a server to those without one, and is no token of writers") {
  ServerOptions options{};
  options.read_token = kReadToken;
  CHECK_FALSE(identify(options, "").has_value());
  CHECK(identify(options, kReadToken)->reads_only);
  options.token = kToken;
  CHECK_FALSE(identify(options, kToken)->reads_only);
  CHECK(identify(options, kReadToken)->reads_only);
  CHECK_FALSE(identify(options, "of-nobody").has_value());
}

}  // namespace infinistore
