#pragma once
// Acceptor: takes connections from one listening socket and hands each to whoever serves it.

#include <functional>

#include "core/base/fd.h"
#include "core/base/poller.h"
#include "core/transport/transports.h"

namespace infinistore {

class Acceptor final : public PollTarget {
 public:
  using Take = std::function<void(const Transport& transport, UniqueFd socket)>;

  // Told of a connection for which the process has no descriptor to spare, before it is closed.
  using Shed = std::function<void(int socket)>;

  // `socket` is non-blocking.  Belongs to the poller's thread once it is polled.
  Acceptor(UniqueFd socket, const Transport& transport, Poller& poller, Take take, Shed shed);
  ~Acceptor() override;

  void on_ready(std::uint32_t events) override;

 private:
  void shed();

  UniqueFd socket_;
  UniqueFd spare_;  // given up for a moment when the process has no descriptor left
  const Transport& transport_;
  Poller& poller_;
  Take take_;
  Shed shed_;
};

}  // namespace infinistore
