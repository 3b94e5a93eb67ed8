// Streams by TLS between two ends that behave, and that do not; and the numbers of constants.h
// beside OpenSSL's, where its headers are installed.
#include "core/transport/tls/tls.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <filesystem>
#include <string>

#include "core/transport/stream_testing.h"
#include "core/transport/tls/certificate_testing.h"
#include "core/transport/tls/constants.h"
#include "core/transport/tls/server_tls.h"

#if __has_include(<openssl/ssl.h>)
#include <openssl/bio.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

namespace infinistore {
namespace {

static_assert(kSslErrorWantRead == SSL_ERROR_WANT_READ);
static_assert(kSslErrorWantWrite == SSL_ERROR_WANT_WRITE);
static_assert(kSslErrorZeroReturn == SSL_ERROR_ZERO_RETURN);
static_assert(kSslFiletypePem == SSL_FILETYPE_PEM);
static_assert(kSslVerifyNone == SSL_VERIFY_NONE);
static_assert(kSslVerifyPeer == SSL_VERIFY_PEER);
static_assert(kControlMode == SSL_CTRL_MODE);
static_assert(kControlReadAhead == SSL_CTRL_SET_READ_AHEAD);
static_assert(kControlSessionCache == SSL_CTRL_SET_SESS_CACHE_MODE);
static_assert(kControlHostName == SSL_CTRL_SET_TLSEXT_HOSTNAME);
static_assert(kControlMinVersion == SSL_CTRL_SET_MIN_PROTO_VERSION);
static_assert(kVersion12 == TLS1_2_VERSION);
static_assert(kHostNameType == TLSEXT_NAMETYPE_host_name);
static_assert(kModePartialWrite == SSL_MODE_ENABLE_PARTIAL_WRITE);
static_assert(kModeMovingBuffer == SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
static_assert(kModeReleaseBuffers == SSL_MODE_RELEASE_BUFFERS);
static_assert(kOptionNoCompression == SSL_OP_NO_COMPRESSION);
static_assert(kOptionNoRenegotiation == SSL_OP_NO_RENEGOTIATION);
static_assert(kBioTypeSocket == (BIO_TYPE_SOURCE_SINK | BIO_TYPE_DESCRIPTOR));
static_assert(kBioFlagRead == BIO_FLAGS_READ);
static_assert(kBioFlagWrite == BIO_FLAGS_WRITE);
static_assert(kBioFlagRetry == BIO_FLAGS_SHOULD_RETRY);
static_assert(kBioControlFlush == BIO_CTRL_FLUSH);
static_assert(kVerifyOk == X509_V_OK);
static_assert(kVerifyNotYet == X509_V_ERR_CERT_NOT_YET_VALID);
static_assert(kVerifyExpired == X509_V_ERR_CERT_HAS_EXPIRED);
static_assert(kVerifySelfSigned == X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT);
static_assert(kVerifySelfSignedInChain == X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN);
static_assert(kVerifyNoIssuer == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY);
static_assert(kVerifyNoIssuerOfLeaf == X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE);
static_assert(kVerifyWrongHost == X509_V_ERR_HOSTNAME_MISMATCH);
static_assert(kVerifyWrongAddress == X509_V_ERR_IP_ADDRESS_MISMATCH);

}  // namespace
}  // namespace infinistore
#endif

namespace infinistore {
namespace {

// Both ends' halves, of a client that trusts anybody.
class Halves {
 public:
  // Whether this machine has OpenSSL, the library and the command.
  bool are_there() {
    auto opened = ServerTls::open(files_.chain(), files_.key());
    auto context = TlsContext::make(Tls::Side::kClient);
    if (!files_.are_made() || !opened || !context) {
      MESSAGE("no OpenSSL here: TLS is not tested");
      return false;
    }
    server_ = std::move(*opened);
    client_ = std::make_unique<TlsContext>(std::move(*context));
    return true;
  }
  std::unique_ptr<Tls> operator()(int socket, Tls::Side side) {
    auto made = side == Tls::Side::kServer
                    ? server_->accept(socket)
                    : Tls::make(client_->library(), client_->native(), socket, side);
    REQUIRE(made.ok());
    return std::move(*made);
  }
  Ends::Secure both() {
    return [this](int socket, Tls::Side side) { return (*this)(socket, side); };
  }
  Ends::Secure only(Tls::Side which) {
    return [this, which](int socket, Tls::Side side) {
      return side == which ? (*this)(socket, side) : nullptr;
    };
  }
  ServerTls& server() { return *server_; }
  const TestCertificate& files() const { return files_; }

 private:
  TestCertificate files_;
  std::unique_ptr<ServerTls> server_;
  std::unique_ptr<TlsContext> client_;
};

}  // namespace

TEST_CASE("by TLS frames and payloads of any size arrive in order, however they are cut") {
  Halves halves;
  if (!halves.are_there()) return;
  for (const std::size_t piece : {1, 33, 4096, 65536}) {
    CAPTURE(piece);
    Loopback::Options options;
    options.to_server.piece_bytes_max = options.to_client.piece_bytes_max = piece;
    Ends ends(options, halves.both());
    const std::size_t factor = piece == 1 ? 1 : 40;
    std::deque<std::string> sent;
    std::deque<Scatter> pieces;
    std::uint64_t id = 0;
    for (const std::size_t size : {0, 1, 100, 0, 5000, 3}) {
      ++id;
      CHECK(ends.one->send(Opcode::kPing, id, body_of(std::string(size, 'b'))) == Code::kOk);
      CHECK(ends.other->send(Opcode::kPing, id, body_of(std::string(size, 'o'))) == Code::kOk);
      auto& bytes = sent.emplace_back(factor * size + 1, static_cast<char>('a' + id));
      auto& from = pieces.emplace_back();
      const std::size_t half = bytes.size() / 2;
      from.add(reinterpret_cast<std::byte*>(bytes.data()), half);
      from.add(reinterpret_cast<std::byte*>(bytes.data()) + half, bytes.size() - half);
      CHECK(ends.one->send(Opcode::kData, id, {}, 0, &from, bytes.size()) == Code::kOk);
    }
    REQUIRE(ends.until([&] {
      return ends.other_owner.payload_count == sent.size() && ends.one_owner.frames.size() == id;
    }));
    CHECK(ends.other_owner.payloads == sent);
    CHECK(ends.other_owner.frames[8].body == std::string(5000, 'b'));
    CHECK(ends.one_owner.frames[4].body == std::string(5000, 'o'));
    CHECK(ends.one->moved_bytes() == ends.other->moved_bytes());
    CHECK(ends.one->queued_bytes() == 0);
  }
}

TEST_CASE("what waited for the end of the handshake leaves though a read came to it first") {
  Halves halves;
  if (!halves.are_there()) return;
  std::array<int, 2> sockets{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets.data()) ==
          0);
  const UniqueFd client_end(sockets[0]);
  const UniqueFd server_end(sockets[1]);
  const auto client = halves(client_end.get(), Tls::Side::kClient);
  const auto server = halves(server_end.get(), Tls::Side::kServer);
  std::string word = "word";
  std::string room(100, '\0');
  const std::array<iovec, 1> says{{{word.data(), word.size()}}};
  const std::array<iovec, 1> hears{{{room.data(), room.size()}}};
  const auto read = [&](Tls& tls) { return tls.receive(hears); };

  CHECK(client->send(says) == -1);  // its first flight
  CHECK(server->send(says) == -1);  // the server's
  CHECK(client->send_awaits_bytes());
  CHECK(server->send_awaits_bytes());
  CHECK(read(*client) == -1);  // which ends the handshake here, and is answered
  CHECK_FALSE(client->send_awaits_bytes());
  CHECK(read(*server) == -1);
  CHECK_FALSE(server->send_awaits_bytes());
  for (auto* const tls : {client.get(), server.get()}) {
    CHECK(tls->send(says) == 4);
    CHECK(read(tls == client.get() ? *server : *client) == 4);
  }
}

TEST_CASE("by TLS what is queued leaves before a gentle close, and the end is told") {
  Halves halves;
  if (!halves.are_there()) return;
  Ends ends({}, halves.both());
  const std::string large(3u << 20, 'x');
  ends.one->send(Opcode::kPing, 1, body_of(large));
  ends.one->part_after_sending({Code::kDraining, "bye"});
  REQUIRE(ends.until([&] { return !ends.other_owner.ends.empty(); }));
  REQUIRE(ends.other_owner.frames.size() == 1);
  CHECK(ends.other_owner.frames[0].body == large);
  CHECK(ends.other_owner.ends[0].code == Code::kDisconnected);
  REQUIRE(ends.until([&] { return !ends.one_owner.ends.empty(); }));
  CHECK(ends.one_owner.ends[0].code == Code::kDraining);
}

TEST_CASE("by TLS a stream that pauses again and again hears everything") {
  Halves halves;
  if (!halves.are_there()) return;
  Ends ends({}, halves.both());
  for (std::uint64_t id = 1; id <= 200; ++id) {
    ends.one->send(Opcode::kPing, id, body_of(std::string(3000, 'x')));
  }
  ends.other_owner.on_next_frame = [&] { ends.other->pause_reading(true); };
  REQUIRE(ends.until([&] { return ends.other_owner.frames.size() == 1; }));
  while (ends.other_owner.frames.size() < 199) {
    const auto heard = ends.other_owner.frames.size();
    ends.other_owner.on_next_frame = [&] { ends.other->pause_reading(true); };
    ends.other->pause_reading(false);
    REQUIRE(ends.until([&] { return ends.other_owner.frames.size() > heard; }));
  }
  ends.other_owner.on_next_frame = nullptr;
  ends.other->pause_reading(false);
  REQUIRE(ends.until([&] { return ends.other_owner.frames.size() == 200; }));
}

TEST_CASE("by TLS what a peer does not read is bounded, and arrives when it does") {
  Halves halves;
  if (!halves.are_there()) return;
  Ends ends({}, halves.both());
  ends.one->send(Opcode::kPing, 1, {});
  REQUIRE(ends.until([&] { return ends.other_owner.frames.size() == 1; }));
  ends.other->pause_reading(true);
  Code code = Code::kOk;
  std::uint64_t id = 1;
  while (code == Code::kOk && id < 1000) {
    code = ends.one->send(Opcode::kPing, ++id, body_of(std::string(1u << 20, 'x')));
  }
  CHECK(code == Code::kOverloaded);
  ends.other->pause_reading(false);
  REQUIRE(ends.until([&] { return ends.other_owner.frames.size() == id - 1; }));
}

TEST_CASE("by TLS a changed byte and a cut end the connection") {
  Halves halves;
  if (!halves.are_there()) return;
  for (const std::uint64_t at : {10, 700, 30'000}) {  // in the handshake, and after it
    CAPTURE(at);
    Loopback::Options changed;
    changed.to_server.corrupt_at = at;
    Ends damaged(changed, halves.both());
    damaged.one->send(Opcode::kPing, 1, body_of(std::string(100'000, 'x')));
    REQUIRE(damaged.until([&] { return !damaged.other_owner.ends.empty(); }));
    CHECK(damaged.other_owner.frames.empty());
    REQUIRE(damaged.until([&] { return !damaged.one_owner.ends.empty(); }));

    Loopback::Options cut;
    cut.to_server.cut_at = at;
    Ends ended(cut, halves.both());
    ended.one->send(Opcode::kPing, 1, body_of(std::string(100'000, 'x')));
    REQUIRE(ended.until([&] { return !ended.other_owner.ends.empty(); }));
    CHECK(ended.other_owner.frames.empty());
    CHECK(ended.other_owner.ends[0].code == Code::kDisconnected);
  }
}

TEST_CASE("who speaks no TLS to who does is known by his first bytes, and answered in plain") {
  Halves halves;
  if (!halves.are_there()) return;
  Ends ends({}, halves.only(Tls::Side::kServer));
  ends.one->send(Opcode::kPing, 1, body_of("secret"));
  REQUIRE(ends.until([&] { return !ends.other_owner.ends.empty(); }));
  CHECK(ends.other_owner.frames.empty());
  CHECK(ends.other_owner.ends[0].code == Code::kProtocol);
  CHECK(ends.other_owner.garbage == Garbage::kPlain);

  Ends reversed({}, halves.only(Tls::Side::kClient));
  reversed.one->send(Opcode::kPing, 1, body_of("secret"));
  REQUIRE(reversed.until([&] { return !reversed.other_owner.ends.empty(); }));
  CHECK(reversed.other_owner.garbage == Garbage::kTls);
}

TEST_CASE("files that are no pair are refused, and the old pair stays") {
  Halves halves;
  if (!halves.are_there()) return;
  const TestCertificate other;
  CHECK(ServerTls::open(halves.files().chain(), other.key()).code() == Code::kSetup);
  CHECK(ServerTls::open("/nowhere", other.key()).code() == Code::kSetup);
  std::filesystem::copy_file(other.key(), halves.files().key(),
                             std::filesystem::copy_options::overwrite_existing);
  CHECK(halves.server().reload().code == Code::kSetup);
  Ends ends({}, halves.both());
  ends.one->send(Opcode::kPing, 1, body_of("still"));
  REQUIRE(ends.until([&] { return ends.other_owner.frames.size() == 1; }));
  std::filesystem::copy_file(other.chain(), halves.files().chain(),
                             std::filesystem::copy_options::overwrite_existing);
  CHECK(halves.server().reload().code == Code::kOk);
}

}  // namespace infinistore
