#include "tests/fuzz/live/attacker.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "core/base/checksum.h"
#include "core/transport/tcp/client_dial.h"

namespace infinistore::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience(60);  // past it the server hangs
constexpr std::uint64_t kFillBytesMax = 1u << 20;
constexpr std::size_t kSentKept = 4u << 20;

// What the server itself says, or the transport's: no request.
constexpr std::array kNotRequests = {Opcode::kWelcome, Opcode::kGrant,   Opcode::kResult,
                                     Opcode::kData,    Opcode::kMatched, Opcode::kCounters,
                                     Opcode::kError};

int connect_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(static_cast<char*>(address.sun_path), path.c_str(),
              std::min(path.size() + 1, sizeof address.sun_path));
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  ::close(fd);
  return -1;
}

}  // namespace

UniqueFd dial(const Target& target, bool shared_memory) {
  if (shared_memory) {
    UniqueFd fd(connect_unix(target.unix_path));
    if (!fd) throw Finding(std::string("the unix socket takes nobody: ") + std::strerror(errno));
    return fd;
  }
  auto dialled = dial_tcp(target.host, target.port, Clock::now() + kPatience);
  if (!dialled) throw Finding("the server takes nobody: " + dialled.error().message);
  auto fd = std::move(dialled).value();
  ::fcntl(fd.get(), F_SETFL, 0);  // sending may wait
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

Attacker::Attacker(const Target& target, bool shared_memory, std::uint64_t seed, Figures& figures)
    : shared_memory_(shared_memory),
      figures_(figures),
      make_(seed),
      nonce_(target.nonce),
      socket_(dial(target, shared_memory)),
      answers_(socket_.get(), shared_memory, figures) {
  const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  ++figures_.connections;
  if (shared_memory_) ++figures_.shared_memory_connections;
  greet();
}

void Attacker::add(Body& burst, Opcode opcode, std::uint64_t id, Bytes body, std::uint16_t flags) {
  append_frame(
      burst,
      {.opcode = opcode, .flags = flags, .request_id = id, .body_bytes = 0, .payload_bytes = 0},
      body);
  ++burst_frames_;
}

void Attacker::send(Bytes bytes) {
  if (sent_.size() < kSentKept) sent_.insert(sent_.end(), bytes.begin(), bytes.end());
  while (!bytes.empty()) {
    const auto put = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      throw Finding("the server reads no more");
    }
    if (put < 0) return;  // it has closed: reading tells why
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

// A descriptor that the server did not ask for: it must not keep it.
void Attacker::send_with_fd(Bytes bytes) {
  const UniqueFd extra(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  iovec piece{const_cast<std::byte*>(bytes.data()), 1};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> room{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = room.data();
  message.msg_controllen = room.size();
  auto* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = extra.get();
  std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
  if (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) == 1) {
    sent_.push_back(bytes.front());
    send(bytes.subspan(1));
  }
}

// ---- bursts ----

void Attacker::greet() {
  Body first;
  const auto id = next_id();
  const auto form = make_.number(40);
  if (form == 0) {
    add(first, Opcode::kPing, id, {});
    send(first);
    return await_refusal(Code::kProtocol);
  }
  if (form == 1) {
    add(first, Opcode::kHello, id, encode(Hello{.version_min = 2, .version_max = 9}));
    send(first);
    return await_refusal(Code::kVersion);
  }
  if (form == 2 && shared_memory_) {
    add(first, Opcode::kHello, id, make_.hello(Nonce{}));
    send(first);
    return await_refusal(Code::kUnauthorized);
  }
  if (form == 3) {
    auto body = make_.hello(nonce_);
    body.pop_back();
    add(first, Opcode::kHello, id, body);
    send(first);
    return await_refusal(Code::kProtocol);
  }
  answers_.ask(id, {.opcode = Opcode::kHello});
  add(first, Opcode::kHello, id, make_.hello(nonce_));
  if (shared_memory_ && make_.one_in(2)) {
    send_with_fd(first);
  } else {
    send(first);
  }
  ping_ = id;
}

void Attacker::turn() {
  if (!held_.empty()) {
    const auto rest = std::exchange(held_, {});
    send(rest);
  }
  finish_burst();
  if (is_over_) return;
  switch (make_.number(30)) {
    case 0:
    case 1:
      return break_rules();
    case 2:
      return vanish();
    case 3:
      return scramble();
    default:
      return begin_burst();
  }
}

// Until the PING behind the burst is answered: then the server has taken all of it.
void Attacker::finish_burst() {
  const auto deadline = Clock::now() + kPatience;
  while (!answers_.is_answered(ping_)) {
    answers_.read(1000);
    if (answers_.is_ended()) {
      const auto why = answers_.refusal();
      throw Finding("the server ended a connection that kept the rules, code " +
                    std::to_string(why ? static_cast<int>(*why) : -1));
    }
    if (Clock::now() > deadline) throw Finding("the server answers no more");
  }
  answers_.check_all_before(ping_);
  figures_.frames_taken += burst_frames_;
  burst_frames_ = 0;
}

void Attacker::begin_burst() {
  Body burst;
  for (auto count = 1 + make_.number(60); count > 0; --count) add_request(burst);
  ping_ = next_id();
  answers_.ask(ping_, {.opcode = Opcode::kPing});
  add(burst, Opcode::kPing, ping_, {});
  if (make_.one_in(8)) {  // half of it now, cut anywhere
    const auto cut = static_cast<std::ptrdiff_t>(make_.number(burst.size()));
    held_.assign(burst.begin() + cut, burst.end());
    burst.resize(static_cast<std::size_t>(cut));
  } else if (make_.one_in(40)) {  // in drops
    for (Bytes left(burst); !left.empty();) {
      const auto step = std::min<std::size_t>(1 + make_.number(300), left.size());
      send(left.first(step));
      left = left.subspan(step);
    }
    return;
  }
  send(burst);
}

void Attacker::add_request(Body& burst) {
  std::size_t count = 0;
  const auto id = next_id();
  const auto form = make_.number(100);
  if (form < 18) return add_put(burst);
  if (form < 36) return add_fill(burst);
  if (form < 44) return add_done(burst);
  if (form < 50) return add_late_word(burst);
  if (form < 64) {
    const auto body = make_.get(count);
    answers_.ask(id, {.opcode = Opcode::kGet, .count = count, .may_wait = true});
    return add(burst, Opcode::kGet, id, body, static_cast<std::uint16_t>(make_.number(4)));
  }
  if (form < 72) {
    answers_.ask(id, {.opcode = Opcode::kMatch});
    return add(burst, Opcode::kMatch, id, make_.match());
  }
  if (form < 90) {
    constexpr std::array kWithKeys = {Opcode::kExists, Opcode::kErase, Opcode::kAbort,
                                      Opcode::kSuspect};
    const auto opcode = kWithKeys[make_.number(kWithKeys.size())];
    const auto body = make_.keys_request(count);
    // SUSPECT is worked off in slices, between which others are answered.
    const bool may_wait = opcode == Opcode::kSuspect;
    answers_.ask(id, {.opcode = opcode, .count = count, .may_wait = may_wait});
    return add(burst, opcode, id, body);
  }
  if (form < 95) {
    const auto body = make_.lease(answers_.leases, count);
    answers_.ask(id, {.opcode = Opcode::kLease, .count = count});
    return add(burst, Opcode::kLease, id, body);
  }
  const auto opcode = make_.one_in(10) ? Opcode::kStats : Opcode::kPing;
  answers_.ask(id, {.opcode = opcode});
  add(burst, opcode, id, {});
}

void Attacker::add_put(Body& burst) {
  const auto id = next_id();
  std::vector<std::string> keys;
  Asked asked{.opcode = Opcode::kPut};
  const auto body = make_.put(keys, asked.ranges);
  asked.count = keys.size();
  asked.may_wait = true;  // its RESULT waits for FILL
  answers_.ask(id, std::move(asked));
  add(burst, Opcode::kPut, id, body);
}

void Attacker::add_fill(Body& burst, std::uint64_t id, const FillRequest& fill, Bytes payload) {
  append_frame(burst,
               {.opcode = Opcode::kFill,
                .flags = 0,
                .request_id = id,
                .body_bytes = 0,
                .payload_bytes = payload.size()},
               encode(fill));
  burst.insert(burst.end(), payload.begin(), payload.end());
  ++burst_frames_;
}

// FILL and DONE of a request that is not open: ignored, its payload too.
void Attacker::add_late_word(Body& burst) {
  const auto id = make_.one_in(2) ? next_id() : make_.random()() | (std::uint64_t{1} << 63);
  if (make_.one_in(3)) return add(burst, Opcode::kDone, id, {});
  FillRequest fill{.granted_count = static_cast<std::uint32_t>(make_.number(5))};
  if (shared_memory_) fill.checksums.resize(fill.granted_count);
  if (make_.one_in(3)) return add(burst, Opcode::kFill, id, encode(fill), kFlagFillCancelled);
  add_fill(burst, id, fill, make_.noise(shared_memory_ ? 0 : make_.number(3000)));
}

std::uint64_t Attacker::granted_bytes(const Asked& asked) const {
  std::uint64_t bytes = 0;
  for (const auto index : asked.granted) bytes += asked.ranges.of(index).bytes;
  return bytes;
}

// The granted ranges' bytes, then their checksums: most of them true.
Body Attacker::fill_payload(const Asked& asked, std::uint64_t bytes) {
  Body payload = make_.noise(bytes > 64 ? 64 : bytes);
  payload.resize(bytes, payload.empty() ? std::byte{} : payload.back());
  std::vector<std::uint64_t> sums;
  std::size_t at = 0;
  for (const auto index : asked.granted) {
    const auto& range = asked.ranges.of(index);
    const auto part = Bytes(payload).subspan(at, range.bytes);
    sums.push_back(make_.one_in(10) ? make_.random()() : checksum(part, range.value_offset));
    at += range.bytes;
  }
  const auto raw = std::as_bytes(std::span(sums));
  payload.insert(payload.end(), raw.begin(), raw.end());
  return payload;
}

void Attacker::add_fill(Body& burst) {
  if (answers_.grants.empty()) return add_put(burst);
  const auto id = answers_.grants.back();
  answers_.grants.pop_back();
  auto& asked = answers_.asked().at(id);
  const auto bytes = granted_bytes(asked);
  FillRequest fill{.granted_count = static_cast<std::uint32_t>(asked.granted.size())};
  if (make_.one_in(8) || (!shared_memory_ && bytes > kFillBytesMax)) {
    add(burst, Opcode::kFill, id, encode(fill), kFlagFillCancelled);
  } else if (shared_memory_) {
    for (auto& sum : asked.granted) fill.checksums.push_back(make_.random()() + sum);
    add(burst, Opcode::kFill, id, encode(fill));
  } else {
    add_fill(burst, id, fill, fill_payload(asked, bytes));
  }
  ++figures_.fills;
  // Said again it is late: nobody waits for it.
  if (make_.one_in(10)) {
    add(burst, Opcode::kFill, id, encode(FillRequest{}), kFlagFillCancelled);
  }
}

void Attacker::add_done(Body& burst) {
  const bool knows = !answers_.done_due.empty();
  const auto id = knows ? answers_.done_due.back() : next_id();
  if (knows) answers_.done_due.pop_back();
  add(burst, Opcode::kDone, id, {});
  if (make_.one_in(10)) add(burst, Opcode::kDone, id, {});
}

// ---- ends ----

// One frame that no client may send.  The server must say so and end, and do nothing else.
void Attacker::break_rules() {
  Body last;
  auto code = std::optional(Code::kProtocol);
  const auto id = next_id();
  switch (make_.number(9)) {
    case 0:
    case 1: {
      const auto raw = make_.bad_header();
      last.assign(raw.begin(), raw.end());
      break;
    }
    case 2:
      add(last, kNotRequests[make_.number(kNotRequests.size())], id, make_.noise(make_.number(50)));
      break;
    case 3:
      add(last, Opcode::kHello, id, make_.hello(nonce_));
      break;
    case 4:
      add(last, Opcode::kPing, 0, {});
      break;
    case 5:
      add(last, Opcode::kDone, id, make_.noise(1 + make_.number(20)));
      break;
    case 6:
      add(last, Opcode::kGoodbye, id, {});
      code.reset();
      break;
    case 7:
      if (add_broken_fill(last)) break;
      [[fallthrough]];
    default: {
      constexpr std::array kRequests = {Opcode::kPut,   Opcode::kGet,   Opcode::kMatch,
                                        Opcode::kErase, Opcode::kAbort, Opcode::kExists,
                                        Opcode::kLease, Opcode::kPing,  Opcode::kStats};
      const auto opcode = kRequests[make_.number(kRequests.size())];
      add(last, opcode, id, make_.spoiled(opcode));
    }
  }
  const auto more = make_.noise(make_.number(200));  // what nobody will read
  last.insert(last.end(), more.begin(), more.end());
  send(last);
  await_refusal(code);
}

// Of a grant that is open, but not as it was granted.
bool Attacker::add_broken_fill(Body& burst) {
  if (answers_.grants.empty()) return false;
  const auto id = answers_.grants.front();
  const auto& asked = answers_.asked().at(id);
  FillRequest fill{.granted_count = static_cast<std::uint32_t>(asked.granted.size() + 1)};
  if (make_.one_in(4)) {  // the id of an open request, given to another
    WireRanges ranges;
    std::vector<std::string> keys;
    add(burst, Opcode::kPut, id, make_.put(keys, ranges));
  } else if (shared_memory_) {
    fill.checksums.resize(fill.granted_count);
    add(burst, Opcode::kFill, id, encode(fill));
  } else {
    const bool has_count = make_.one_in(2);
    if (has_count) --fill.granted_count;
    append_frame(burst,
                 {.opcode = Opcode::kFill,
                  .flags = 0,
                  .request_id = id,
                  .body_bytes = 0,
                  .payload_bytes = granted_bytes(asked) + 8 * asked.granted.size() + has_count},
                 encode(fill));
  }
  return true;
}

// In the middle of a frame, or of a payload.
void Attacker::vanish() {
  Body last;
  if (!answers_.grants.empty() && !shared_memory_) {
    const auto& asked = answers_.asked().at(answers_.grants.back());
    const auto bytes = granted_bytes(asked) + 8 * asked.granted.size();
    append_frame(
        last,
        {.opcode = Opcode::kFill,
         .flags = 0,
         .request_id = answers_.grants.back(),
         .body_bytes = 0,
         .payload_bytes = bytes},
        encode(FillRequest{.granted_count = static_cast<std::uint32_t>(asked.granted.size())}));
    last.resize(last.size() + make_.number(std::min(bytes, kFillBytesMax)));
  } else {
    for (int i = 0; i < 5; ++i) add_request(last);
    last.resize(make_.number(last.size()));
  }
  send(last);
  const auto form = make_.number(3);
  if (form == 0) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  } else if (form == 1) {
    ::shutdown(socket_.get(), SHUT_WR);
    answers_.expect_anything();
    await_end();
  }
  ++figures_.vanished;
  is_over_ = true;
  socket_.reset();
}

// Some bytes of a burst are others than they were: what comes of it nobody knows, save that the
// server ends it or waits for more.
void Attacker::scramble() {
  Body burst;
  for (int i = 0; i < 10; ++i) add_request(burst);
  make_.scramble(burst);
  answers_.expect_anything();
  send(burst);
  for (int i = 0; i < 3 && !answers_.is_ended(); ++i) answers_.read(1);
  ::shutdown(socket_.get(), SHUT_WR);
  await_end();
  is_over_ = true;
  socket_.reset();
}

void Attacker::await_end() {
  const auto deadline = Clock::now() + kPatience;
  while (!answers_.is_ended()) {
    answers_.read(1000);
    if (Clock::now() > deadline) throw Finding("the server keeps a connection that has ended");
  }
}

void Attacker::await_refusal(std::optional<Code> code) {
  await_end();
  if (code && answers_.refusal() != code) {
    const auto got = answers_.refusal();
    throw Finding("the server ends a connection with code " +
                  std::to_string(got ? static_cast<int>(*got) : -1) + ", not " +
                  std::to_string(static_cast<int>(*code)));
  }
  if (code) {
    ++figures_.broken;
    ++figures_.frames_taken;
  }
  is_over_ = true;
  socket_.reset();
}

}  // namespace infinistore::fuzz
