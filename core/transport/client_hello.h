#pragma once
// The first exchange of a connection, on the client's side: HELLO, and the WELCOME or refusal.

#include <string>
#include <vector>

#include "core/transport/tcp/client_dial.h"
#include "core/wire/message.h"

namespace infinistore {

// WELCOME, with its own memory, and what came beside it.
struct Greeting {
  Welcome welcome;  // without its texts, which stand below
  std::string unix_path;
  std::string server_version;
  std::vector<UniqueFd> fds;
};

// Sends `hello` over a fresh, non-blocking socket and reads the answer, no byte more.  Waits, at
// most until `deadline`.
Result<Greeting> exchange_hello(int socket, const Hello& hello, DialDeadline deadline);

}  // namespace infinistore
