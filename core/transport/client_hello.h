#pragma once
// The first exchange of a connection, on the client's side: HELLO, and the WELCOME or refusal.

#include <string>
#include <vector>

#include "core/transport/tcp/client_dial.h"
#include "core/wire/codec.h"
#include "core/wire/frame.h"
#include "core/wire/message.h"

namespace infinistore {

// WELCOME, with its own memory, and what came beside it.
struct Greeting {
  Welcome welcome;  // without its texts, which stand below
  std::string unix_path;
  std::string server_version;
  std::vector<UniqueFd> fds;
};

struct Answer {
  Opcode opcode = Opcode::kError;
  Body body;
};
// Sends one frame over a socket that carries no other, and reads the answer, no byte more.  Waits,
// at most until `deadline`.
Result<Answer> exchange(int socket, Opcode opcode, std::uint64_t request_id, const Body& body,
                        DialDeadline deadline);

// Sends `hello` over a fresh, non-blocking socket and reads the answer, no byte more.  Waits, at
// most until `deadline`.
Result<Greeting> exchange_hello(int socket, const Hello& hello, DialDeadline deadline);

}  // namespace infinistore
