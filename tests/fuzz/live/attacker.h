#pragma once
// Attacker: one connection to a live server, that breaks rules and knows what must come of it.

#include <memory>
#include <string>

#include "core/base/fd.h"
#include "tests/fuzz/live/answers.h"
#include "tests/fuzz/live/frames.h"

namespace infinistore::fuzz {

struct Target {
  std::string host;
  std::uint16_t port = 0;
  std::string unix_path = {};  // empty: TCP only
  Nonce nonce{};
};

// Connected; throws Finding if the server does not take the connection.
UniqueFd dial(const Target& target, bool shared_memory);

class Attacker {
 public:
  Attacker(const Target& target, bool shared_memory, std::uint64_t seed, Figures& figures);

  // Reads what the last burst brought, then sends another one, or ends in some way.  Throws
  // Finding.
  void turn();
  bool is_over() const noexcept { return is_over_; }
  // All that was sent so far, to tell what the server got.
  const Body& sent() const noexcept { return sent_; }
  bool has_shared_memory() const noexcept { return shared_memory_; }

 private:
  void greet();
  void finish_burst();
  void begin_burst();
  void add_request(Body& burst);
  void add_put(Body& burst);
  void add_fill(Body& burst, std::uint64_t id, const FillRequest& fill, Bytes payload);
  void add_late_word(Body& burst);
  void add_fill(Body& burst);
  void add_done(Body& burst);
  std::uint64_t granted_bytes(const Asked& asked) const;
  Body fill_payload(const Asked& asked, std::uint64_t bytes);

  void break_rules();
  bool add_broken_fill(Body& burst);
  void vanish();
  void await_refusal(std::optional<Code> code);
  void await_end();
  void scramble();

  void send(Bytes bytes);
  void send_with_fd(Bytes bytes);
  std::uint64_t next_id() noexcept { return ++last_id_; }
  void add(Body& burst, Opcode opcode, std::uint64_t id, Bytes body, std::uint16_t flags = 0);

  const bool shared_memory_;
  Figures& figures_;
  FrameMaker make_;
  Nonce nonce_;
  UniqueFd socket_;
  Answers answers_;
  std::uint64_t last_id_ = 0;
  std::uint64_t ping_ = 0;  // the last of the burst that is under way
  std::uint64_t burst_frames_ = 0;
  Body held_ = {};  // the rest of a burst: sent a turn later
  Body sent_ = {};
  bool is_over_ = false;
};

}  // namespace infinistore::fuzz
