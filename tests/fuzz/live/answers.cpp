#include "tests/fuzz/live/answers.h"

#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace infinistore::fuzz {
namespace {

std::string about(const FrameHeader& header) {
  return " (opcode " + std::to_string(static_cast<unsigned>(header.opcode)) + ", request " +
         std::to_string(header.request_id) + ")";
}

template <class Message>
Message need(std::optional<Message> message, const char* what) {
  if (!message) throw Finding(std::string("the server sent a malformed ") + what);
  return std::move(*message);
}

void need_count(std::size_t got, std::size_t wanted, const FrameHeader& header) {
  if (got == wanted) return;
  throw Finding("the server answers " + std::to_string(got) + " outcomes for " +
                std::to_string(wanted) + " keys" + about(header));
}

}  // namespace

bool Answers::is_open(std::uint64_t request_id) const {
  const auto found = asked_.find(request_id);
  return found != asked_.end() && found->second.is_granted;
}

void Answers::check_all_before(std::uint64_t request_id) const {
  for (const auto& [id, asked] : asked_) {
    if (id >= request_id) return;
    if (asked.is_granted || asked.may_wait) continue;
    throw Finding("the server left out the answer of opcode " +
                  std::to_string(static_cast<unsigned>(asked.opcode)) + ", request " +
                  std::to_string(id));
  }
}

bool Answers::read(int wait_ms) {
  if (is_ended_) return false;
  pollfd ready{.fd = socket_, .events = POLLIN, .revents = 0};
  if (::poll(&ready, 1, wait_ms) <= 0) return false;
  static thread_local std::array<std::byte, 256 * 1024> room;
  iovec piece{room.data(), room.size()};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * kRegionsMax)> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const auto got = ::recvmsg(socket_, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got <= 0) {
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    is_ended_ = true;
    was_reset_ = got < 0;
    return false;
  }
  close_fds(message);
  // Bulk bytes are not kept.
  Bytes fresh(room.data(), static_cast<std::size_t>(got));
  if (buffer_.empty()) {
    const auto skip = std::min<std::uint64_t>(payload_left_, fresh.size());
    payload_left_ -= skip;
    fresh = fresh.subspan(skip);
  }
  buffer_.insert(buffer_.end(), fresh.begin(), fresh.end());
  take_frames();
  return true;
}

void Answers::close_fds(msghdr& message) {
  for (auto* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int raw = -1;
      std::memcpy(&raw, CMSG_DATA(part) + i * sizeof(int), sizeof raw);
      const UniqueFd fd(raw);
      struct stat facts{};
      if (::fstat(raw, &facts) == 0)
        region_bytes_received_ += static_cast<std::uint64_t>(facts.st_size);
      ++fds_received_;
      ++figures_.descriptors;
    }
  }
}

void Answers::take_frames() {
  Bytes left(buffer_);
  while (!left.empty()) {
    const auto skip = std::min<std::uint64_t>(payload_left_, left.size());
    payload_left_ -= skip;
    left = left.subspan(skip);
    if (payload_left_ > 0 || left.size() < kHeaderBytes) break;
    const auto header = decode_header(left.first(kHeaderBytes));
    if (!header) throw Finding("the server sent what is no frame");
    if (left.size() < kHeaderBytes + header->body_bytes) break;
    take(*header, left.subspan(kHeaderBytes, header->body_bytes));
    left = left.subspan(kHeaderBytes + header->body_bytes);
    payload_left_ = header->payload_bytes;
  }
  buffer_.erase(buffer_.begin(), buffer_.end() - static_cast<std::ptrdiff_t>(left.size()));
}

void Answers::take(const FrameHeader& header, Bytes body) {
  ++figures_.answers;
  if (refusal_) throw Finding("the server goes on after its last ERROR" + about(header));
  if (header.opcode == Opcode::kError) return take_error(header, body);
  const auto found = asked_.find(header.request_id);
  if (found == asked_.end()) {
    if (!is_strict_) return;
    throw Finding("the server answers what was not asked" + about(header));
  }
  if (header.opcode == Opcode::kGrant && found->second.opcode == Opcode::kPut) {
    return take_grant(header.request_id, found->second, body);
  }
  take_answer(header, found->second, body);
  asked_.erase(header.request_id);
}

void Answers::take_error(const FrameHeader& header, Bytes body) {
  const auto error = need(decode_error(body), "ERROR");
  if (header.request_id == 0) {
    refusal_ = error.code;
    return;
  }
  if (is_strict_ && error.code != Code::kOverloaded) {
    throw Finding("a request failed: " + std::string(error.message) + about(header));
  }
  asked_.erase(header.request_id);
}

void Answers::take_grant(std::uint64_t request_id, Asked& asked, Bytes body) {
  const auto grant = need(decode_grant(body, shared_memory_), "GRANT");
  if (is_strict_) need_count(grant.outcomes.size(), asked.count, {.request_id = request_id});
  for (std::size_t i = 0; i < grant.outcomes.size(); ++i) {
    if (grant.outcomes[i] == Code::kOk) asked.granted.push_back(i);
  }
  asked.is_granted = true;
  if (!asked.granted.empty()) grants.push_back(request_id);
}

void Answers::take_welcome(Bytes body) {
  const auto welcome = need(decode_welcome(body), "WELCOME");
  nonce = welcome.nonce;
  unix_path = welcome.unix_path;
  std::uint64_t bytes = 0;
  for (const auto region : welcome.region_bytes) bytes += region;
  if (welcome.region_bytes.size() != fds_received_ || bytes != region_bytes_received_) {
    throw Finding("WELCOME names other regions than it brings");
  }
}

void Answers::take_answer(const FrameHeader& header, Asked& asked, Bytes body) {
  static constexpr std::array<std::pair<Opcode, Opcode>, 11> kAnswers = {{
      {Opcode::kHello, Opcode::kWelcome},
      {Opcode::kPut, Opcode::kResult},
      {Opcode::kGet, Opcode::kData},
      {Opcode::kMatch, Opcode::kMatched},
      {Opcode::kExists, Opcode::kResult},
      {Opcode::kErase, Opcode::kResult},
      {Opcode::kLease, Opcode::kResult},
      {Opcode::kAbort, Opcode::kResult},
      {Opcode::kStats, Opcode::kCounters},
      {Opcode::kPing, Opcode::kResult},
      {Opcode::kSuspect, Opcode::kResult},
  }};
  const bool fits = std::any_of(kAnswers.begin(), kAnswers.end(), [&](const auto& pair) {
    return pair.first == asked.opcode && pair.second == header.opcode;
  });
  if (is_strict_ && !fits) throw Finding("the server answers in another kind" + about(header));
  if (header.opcode == Opcode::kWelcome) take_welcome(body);
  if (header.opcode == Opcode::kCounters) need(decode_counters(body), "COUNTERS");
  if (header.opcode == Opcode::kResult) {
    const auto result = need(decode_result(body), "RESULT");
    if (is_strict_) need_count(result.outcomes.size(), asked.count, header);
    if (is_strict_ && asked.opcode == Opcode::kPut && !asked.is_granted) {
      throw Finding("RESULT comes before GRANT" + about(header));
    }
  }
  if (header.opcode == Opcode::kMatched) {
    const auto matched = need(decode_matched(body), "MATCHED");
    if (matched.lease_id != 0) leases.push_back(matched.lease_id);
  }
  if (header.opcode == Opcode::kData) {
    const bool has_extents = shared_memory_ && (header.flags & kFlagDataCopied) == 0;
    const auto data = need(decode_data(body, has_extents), "DATA");
    if (is_strict_) need_count(data.outcomes.size(), asked.count, header);
    std::uint64_t bytes = 0;
    for (const auto& item : data.found) bytes += item.bytes;
    if (header.payload_bytes != (has_extents ? 0 : bytes)) {
      throw Finding("DATA's payload is not what its items are" + about(header));
    }
    if (has_extents && !data.found.empty()) done_due.push_back(header.request_id);
  }
}

}  // namespace infinistore::fuzz
