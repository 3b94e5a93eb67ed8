#include "core/server/session/session_testing.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "core/base/checksum.h"
#include "core/transport/tcp/listen.h"

namespace infinistore::testing {
namespace {

constexpr int kTimeoutSeconds = 5;

Pool make_pool(std::uint64_t bytes) {
  auto pool = Pool::create({.bytes = bytes,
                            .huge_pages = HugePages::kOff,
                            .region_bytes = 0,
                            .populate_now = true,
                            .populate_on_touch = false});
  REQUIRE(pool.ok());
  return std::move(pool).value();
}

std::pair<UniqueFd, UniqueFd> unix_pair() {
  std::array<int, 2> fds{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::pair<UniqueFd, UniqueFd> tcp_pair() {
  auto listener = listen_tcp("127.0.0.1", 0);
  REQUIRE(listener.ok());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(listener->port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  UniqueFd server(::accept4(listener->socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(server);
  tune_tcp(client.get());
  return {std::move(client), std::move(server)};
}

void set_blocking(int fd, bool blocks) {
  const int flags = ::fcntl(fd, F_GETFL);
  ::fcntl(fd, F_SETFL, blocks ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

}  // namespace

Peer::Peer(UniqueFd socket, std::string_view transport, Pool& pool)
    : socket_(std::move(socket)), shares_memory_(transport == "shm"), pool_(pool) {
  set_blocking(socket_.get(), true);
  const timeval limit{.tv_sec = kTimeoutSeconds, .tv_usec = 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

void Peer::send_bytes(Bytes bytes) {
  while (!bytes.empty()) {
    const auto put = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put <= 0) return;  // the server closed: the next receive() says so
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

std::uint64_t Peer::send(Opcode opcode, const Body& body, Bytes payload, std::uint16_t flags) {
  send_as(++last_id_, opcode, body, payload, flags);
  return last_id_;
}

void Peer::send_as(std::uint64_t request_id, Opcode opcode, const Body& body, Bytes payload,
                   std::uint16_t flags) {
  const auto header = encode_header({.opcode = opcode,
                                     .flags = flags,
                                     .request_id = request_id,
                                     .body_bytes = static_cast<std::uint32_t>(body.size()),
                                     .payload_bytes = payload.size()},
                                    body);
  Body frame(header.begin(), header.end());
  frame.insert(frame.end(), body.begin(), body.end());
  send_bytes(frame);
  send_bytes(payload);
}

Body Peer::read(std::uint64_t bytes, std::vector<UniqueFd>* fds, bool& is_end) {
  Body data(bytes);
  std::size_t have = 0;
  while (have < bytes) {
    iovec piece{data.data() + have, data.size() - have};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kRegionsMax)> control{};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const auto got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      throw std::runtime_error("the server says nothing");
    }
    if (got <= 0) {
      is_end = true;
      return {};
    }
    for (auto* at = CMSG_FIRSTHDR(&message); at && fds; at = CMSG_NXTHDR(&message, at)) {
      const std::size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
        fds->emplace_back(fd);
      }
    }
    have += static_cast<std::size_t>(got);
  }
  return data;
}

std::optional<Frame> Peer::receive() {
  Frame frame;
  bool is_end = false;
  const auto raw = read(kHeaderBytes, &frame.fds, is_end);
  if (is_end) return std::nullopt;
  const auto header = decode_header(raw);
  REQUIRE(header.has_value());
  frame.header = *header;
  frame.body = read(header->body_bytes, nullptr, is_end);
  frame.payload = read(header->payload_bytes, nullptr, is_end);
  if (is_end) return std::nullopt;
  return frame;
}

Frame Peer::call(Opcode opcode, const Body& body, std::uint16_t flags) {
  const auto request_id = send(opcode, body, {}, flags);
  auto frame = receive();
  REQUIRE(frame.has_value());
  CHECK((frame->header.request_id == request_id || frame->header.opcode == Opcode::kError));
  return std::move(*frame);
}

Frame Peer::hello(std::string_view space, std::string_view token, Nonce nonce,
                  std::uint16_t flags) {
  Hello hello;
  hello.incarnation = 1;
  hello.nonce = nonce;
  hello.token = token;
  hello.space = space;
  hello.client_name = "test";
  return call(Opcode::kHello, encode(hello), flags);
}

Peer::Put Peer::begin_put(const std::vector<Item>& items, OnExists on_exists) {
  PutRequest request;
  request.on_exists = on_exists;
  for (const auto& item : items) {
    request.keys.push_back(item.key);
    const auto value_bytes = item.value_bytes == 0 ? item.bytes.size() : item.value_bytes;
    request.ranges.items.push_back({value_bytes, item.offset, item.bytes.size()});
  }
  const auto frame = call(Opcode::kPut, encode(request));
  REQUIRE(frame.header.opcode == Opcode::kGrant);
  auto grant = decode_grant(frame.body, shares_memory_);
  REQUIRE(grant.has_value());
  REQUIRE(grant->outcomes.size() == items.size());
  Put put{.request_id = frame.header.request_id, .grant = {}, .granted = {}, .offsets = {}};
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (grant->outcomes[i] != Code::kOk) continue;
    put.granted.push_back(items[i].bytes);
    put.offsets.push_back(items[i].offset);
  }
  put.grant = std::move(*grant);
  return put;
}

void Peer::write_extents(const Extents& extents, std::string_view bytes) {
  for (const auto& extent : extents) {
    const auto memory = pool_.bytes_of(extent);
    REQUIRE(memory.size() <= bytes.size());
    std::memcpy(memory.data(), bytes.data(), memory.size());
    bytes.remove_prefix(memory.size());
  }
  CHECK(bytes.empty());
}

std::string Peer::read_extents(const Extents& extents) {
  std::string bytes;
  for (const auto& extent : extents) bytes += text_of(pool_.bytes_of(extent));
  return bytes;
}

void Peer::send_fill(const Put& put) {
  FillRequest fill{.granted_count = static_cast<std::uint32_t>(put.granted.size())};
  std::string payload;
  std::vector<std::uint64_t> sums;
  for (std::size_t i = 0; i < put.granted.size(); ++i) {
    sums.push_back(checksum(bytes_of(put.granted[i]), put.offsets[i]));
    if (shares_memory_) write_extents(put.grant.extents[i], put.granted[i]);
    if (!shares_memory_) payload += put.granted[i];
  }
  if (shares_memory_) {
    fill.checksums = sums;
  } else {
    payload += text_of(std::as_bytes(std::span(sums)));
  }
  send_as(put.request_id, Opcode::kFill, encode(fill), bytes_of(payload));
}

void Peer::send_cancel(const Put& put) {
  FillRequest fill{.granted_count = static_cast<std::uint32_t>(put.granted.size())};
  send_as(put.request_id, Opcode::kFill, encode(fill), {}, kFlagFillCancelled);
}

std::vector<Code> Peer::result() {
  const auto frame = receive();
  REQUIRE(frame.has_value());
  REQUIRE(frame->header.opcode == Opcode::kResult);
  auto result = decode_result(frame->body);
  REQUIRE(result.has_value());
  return result->outcomes;
}

std::vector<Code> Peer::put(const std::vector<Item>& items, OnExists on_exists) {
  const auto put = begin_put(items, on_exists);
  if (!put.granted.empty()) send_fill(put);
  return result();
}

Peer::Got Peer::read_data(bool is_done) {
  const auto frame = receive();
  REQUIRE(frame.has_value());
  REQUIRE(frame->header.opcode == Opcode::kData);
  const bool has_extents = shares_memory_ && (frame->header.flags & kFlagDataCopied) == 0;
  const auto data = decode_data(frame->body, has_extents);
  REQUIRE(data.has_value());
  Got got{.outcomes = data->outcomes, .found = {}};
  std::string_view payload = text_of(frame->payload);
  for (std::size_t i = 0; i < data->found.size(); ++i) {
    const auto& item = data->found[i];
    if (has_extents) {
      got.found.push_back(read_extents(data->extents[i]));
    } else {
      got.found.emplace_back(payload.substr(0, item.bytes));
      payload.remove_prefix(item.bytes);
    }
    CHECK(got.found.back().size() == item.bytes);
  }
  CHECK(payload.empty());
  if (has_extents && is_done && !got.found.empty()) {
    send_as(frame->header.request_id, Opcode::kDone, {});
  }
  return got;
}

Peer::Got Peer::get(const GetRequest& request, std::uint16_t flags, bool is_done) {
  send(Opcode::kGet, encode(request), {}, flags);
  return read_data(is_done);
}

std::vector<Code> Peer::codes(Opcode opcode, const std::vector<std::string_view>& keys) {
  const auto frame = call(opcode, encode(KeysRequest{.keys = keys}));
  REQUIRE(frame.header.opcode == Opcode::kResult);
  const auto result = decode_result(frame.body);
  REQUIRE(result.has_value());
  return result->outcomes;
}

namespace {

std::vector<QuotaOptions> quotas_of(const std::vector<Tenant>& tenants) {
  std::vector<QuotaOptions> quotas;
  for (const auto& tenant : tenants) quotas.push_back({tenant.name, tenant.quota_bytes});
  return quotas;
}

}  // namespace

Harness::Harness(std::string_view transport, HarnessOptions options)
    : transport_(transport_named(transport)),
      given_(std::move(options)),
      options_{.host = "",
               .port = 0,
               .unix_socket = "/test.sock",
               .pool_bytes = given_.pool_bytes,
               .huge_pages = "off",
               .workers = 1,
               .rdma = "off",
               .rdma_device = "",
               .token = given_.token,
               .read_token = given_.read_token,
               .tenants = given_.tenants,
               .tls_cert_file = {},
               .tls_key_file = {},
               .eviction = "lru",
               .stage_timeout_s = given_.stage_timeout_s,
               .stage_share = 0.5,
               .lease_max_s = given_.lease_max_s,
               .sessions_max = 1000,
               .heat_half_life_s = 2,
               .log_level = "info",
               .log_format = "text",
               .version = "test",
               .without_fencing = given_.without_fencing},
      store_(make_pool(given_.pool_bytes),
             {.shard_count = 4,
              .eviction_policy = "lru",
              .staged_bytes_max = given_.pool_bytes / 2,
              .hash_seed = 1,
              .quotas = quotas_of(given_.tenants)},
             clock_,
             [this](NamespaceId space, std::string_view key) {
               for (const auto& waiter : waits_.take(space, key)) worker_->tell(waiter);
             }),
      heat_(store_, clock_, 2 * kSecond),
      leases_(3),
      context_{.options = options_,
               .identity = identity_,
               .clock = clock_,
               .log = log_,
               .store = store_,
               .heat = heat_,
               .leases = leases_,
               .waits = waits_,
               .counters = [] { return std::vector<Counter>{{"answer", 42}}; },
               .on_lease_deadline = [this](Nanos at) { background_.note_deadline(at); }},
      background_(store_, leases_, clock_),
      worker_(std::make_unique<Worker>(0, context_)) {
  worker_->start();
  background_.start();
}

Harness::~Harness() {
  worker_->stop();
  background_.stop();
  const auto left = store_.counters();
  CHECK(left.reserved_bytes == 0);
  CHECK(left.quarantined_bytes == 0);
  CHECK(left.pins == 0);
  CHECK(left.staged_values == 0);
  CHECK(leases_.count() == 0);
  CHECK(waits_.count() == 0);
  CHECK(worker_->metrics().sessions.load() == 0);
  CHECK(store_.check_integrity() == "");
}

std::pair<UniqueFd, UniqueFd> Harness::make_connection() {
  if (transport_.name == "tcp") return tcp_pair();
  if (transport_.name == "shm") return unix_pair();
  loopbacks_.push_back(std::make_unique<Loopback>(given_.faults));
  return {loopbacks_.back()->take_client_end(), loopbacks_.back()->take_server_end()};
}

void Harness::serve(UniqueFd server_end) {
  set_blocking(server_end.get(), false);
  worker_->adopt(transport_, std::move(server_end), ++last_session_);
}

Peer Harness::connect(bool greets, std::string_view space) {
  auto [client, server] = make_connection();
  serve(std::move(server));
  Peer peer(std::move(client), transport_.name, store_.pool());
  if (greets) {
    const auto welcome = peer.hello(space, given_.token, identity_.nonce);
    REQUIRE(welcome.header.opcode == Opcode::kWelcome);
  }
  return peer;
}

void Harness::sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace infinistore::testing
