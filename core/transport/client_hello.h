#pragma once
// The first exchange of a connection, on the client's side: HELLO, and the WELCOME or refusal.

#include <string>
#include <vector>

#include "core/transport/tcp/client_dial.h"
#include "core/transport/tls/tls.h"
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

// A socket that is dialled, and what its bytes go through; nullptr: they go as they are.
struct DialledLine {
  int socket = -1;
  Tls* tls = nullptr;
};

// Sends one frame over a line that carries no other, and reads the answer, no byte more.  Waits, at
// most until `deadline`.
Result<Answer> exchange(DialledLine line, Opcode opcode, std::uint64_t request_id, const Body& body,
                        DialDeadline deadline);

// Sends `hello`, with its frame's `flags`, over a fresh line and reads the answer, no byte more.
// Waits, at most until `deadline`.
Result<Greeting> exchange_hello(DialledLine line, const Hello& hello, std::uint16_t flags,
                                DialDeadline deadline);

// Of a server that answers a handshake of TLS with a frame: kOverloaded or kDraining if that is
// what it says in it; `otherwise` in all other cases.
Error read_refusal(int socket, const Error& otherwise, DialDeadline deadline);

}  // namespace infinistore
