// Servers that would let a client write which asked to read only: it does not take them.
#include <doctest/doctest.h>

#include <string>

#include "core/client/client.h"
#include "core/client/client_fixture.h"

namespace infinistore {
namespace {

constexpr std::string_view kOlder = "an older server does not know read_only: update it";

Error error_of_reader(const FakeServer& server, TransportChoice transport = TransportChoice::kTcp) {
  auto options = options_for(server, transport);
  options.read_only = true;
  const auto client = Client::connect(options, kClock);
  REQUIRE_FALSE(client.ok());
  return client.error();
}

FakeServer::Script answers_hello(std::function<void(FakePeer&, const FakeFrame&)> answer) {
  return [answer = std::move(answer)](FakePeer& peer) {
    const auto hello = peer.next();
    if (!hello) return;
    CHECK(hello->header.opcode == Opcode::kHello);
    answer(peer, *hello);
  };
}

TEST_CASE("a WELCOME that does not say that the session only reads is not taken") {
  const FakeServer server([](FakePeer& peer) { peer.next(); }, 1 << 20);
  const Error error = error_of_reader(server, TransportChoice::kAuto);
  CHECK(error.code == Code::kProtocol);
  CHECK(error.message == "the server has not heard that this session may only read");
  CHECK(server.connections() == 1);  // nor did it come as far as the memory
  CHECK(connect_to(server, TransportChoice::kAuto)->server().shares_memory);  // as who may write
}

TEST_CASE("a server that does not know the flag of a reader is one to update") {
  const FakeServer server(answers_hello([](FakePeer& peer, const FakeFrame& hello) {
                            CHECK(hello.header.flags == kFlagHelloReadOnly);
                            peer.send(Opcode::kError, 0,
                                      encode(ErrorReply{Code::kProtocol, "no frame"}));
                          }),
                          0, true, false);
  const Error error = error_of_reader(server);
  CHECK(error.code == Code::kProtocol);
  CHECK(error.message == "no frame; " + std::string(kOlder));
}

TEST_CASE("and so is one that closes at it without a word") {
  const FakeServer server(answers_hello([](auto&, auto&) {}), 0, true, false);
  const Error error = error_of_reader(server);
  CHECK(error.message.find("closed the connection") != std::string::npos);
  CHECK(error.message.ends_with("; " + std::string(kOlder)));
  CHECK(error.code == Code::kDisconnected);  // it may as well be going: another try is worth it
}

}  // namespace
}  // namespace infinistore
