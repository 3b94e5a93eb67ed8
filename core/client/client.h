#pragma once
// Client: one server, as a program sees it.
//
//   auto client = Client::connect(options, clock);
//   Batch batch(spec); client->submit(batch); batch.wait(timeout); batch.outcomes ...
//
// Thread-safe, save close() and destruction against other calls.  Whoever submits an operation
// keeps it and the memory that it names until it has ended; cancel() makes that soon.

#include <atomic>
#include <memory>
#include <vector>

#include "core/client/batch.h"
#include "core/client/channel.h"
#include "core/client/options.h"

namespace infinistore {

class Client {
  struct Private {};

 public:
  // Waits for the first connection.  kDisconnected, kTimeout, kUnauthorized, kVersion, kSetup ...
  static Result<std::unique_ptr<Client>> connect(ClientOptions options, const Clock& clock);
  Client(Private, ClientOptions options, const Clock& clock);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void submit(Batch& batch);
  void submit(Call& call);
  void post(CallSpec call);  // nobody waits for the answer
  // A batch will come soon: the thread and the server wake up meanwhile.
  void rouse();
  void cancel(const Operation& operation);
  // Operation::wait(), and quicker where the caller can take the answer from the socket himself.
  bool wait(Operation& operation, Nanos timeout);
  // Operation::is_done(), and sooner, likewise.
  bool is_done(const Operation& operation);

  // Shows the server's pool to a GPU; else that is done when it is used, a part at a time.
  Error prepare(const Gpu& gpu);

  // Memory that stays where it is until forget() has returned: over RDMA it is registered once.
  Error keep(MutableBytes memory) { return rdma_.memory().keep(memory); }
  void forget(const std::byte* base) { rdma_.memory().forget(base); }

  // Ends all that is submitted with kClosed, and the connections.
  void close();

  // The ids of ended operations, from the first call of this on.
  Completions& completions();

  ServerInfo server() const { return channels_.front()->server(); }
  const ClientCounters& counters() const noexcept { return counters_; }
  const ClientOptions& options() const noexcept { return options_; }

  // In a forked child, where nothing else of this may be called any more.
  void close_after_fork() noexcept;

 private:
  static Result<std::unique_ptr<Client>> connect_or_throw(ClientOptions options,
                                                          const Clock& clock);
  void open_channel(TransportChoice choice);
  void send(std::size_t channel, std::unique_ptr<Request> request, bool is_awaited);
  void look_at_sockets(const Operation& operation, Nanos patience);
  std::vector<std::vector<std::uint32_t>> spread(const KeyList& keys) const;
  std::vector<std::unique_ptr<Request>> cut(Batch& batch,
                                            const std::vector<std::uint32_t>& indexes) const;

  const ClientOptions options_;
  const Clock& clock_;
  const ClientIdentity identity_;
  ClientCounters counters_;
  Completions completions_;
  Crew crew_;
  RdmaClient rdma_;
  std::atomic<bool> tells_completions_{false};
  std::atomic<std::uint64_t> next_id_{1};
  std::vector<std::unique_ptr<Channel>> channels_;
};

}  // namespace infinistore
