#include "core/client/client.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <system_error>

#include "core/base/check.h"
#include "core/base/hash.h"

namespace infinistore {
namespace {

// One put reserves at most this share of the pool: a quarter of what its channel may have in
// flight.
constexpr std::uint64_t kPoolShareOfPuts = 4 * kPutShareOfPool;

// One copy by a GPU.  The bus rests between two launches, so they are large; but the first ones, so
// that they begin sooner, and the last, so that they end sooner.  What is staged takes as much
// pinned memory.
constexpr std::uint64_t kLaunchBytesMax = std::uint64_t{16} << 20;
constexpr std::uint64_t kStagedBytesMax = std::uint64_t{8} << 20;
constexpr std::uint64_t kFirstLaunchBytes = std::uint64_t{1} << 20;

}  // namespace

// Descriptors and threads may run out in a program that has many of its own.
Result<std::unique_ptr<Client>> Client::connect(ClientOptions options, const Clock& clock) {
  try {
    return connect_or_throw(std::move(options), clock);
  } catch (const std::system_error& error) {
    return Error{Code::kSetup, std::string("this process has no descriptor or thread left (") +
                                   error.what() + "); raise ulimit -n or ulimit -u"};
  }
}

Result<std::unique_ptr<Client>> Client::connect_or_throw(ClientOptions options,
                                                         const Clock& clock) {
  auto client = std::make_unique<Client>(Private{}, std::move(options), clock);
  client->open_channel(client->options_.transport);
  const auto outcome = client->channels_.front()->wait_dialled();
  if (outcome.code != Code::kOk) return outcome;
  if (!client->server().shares_memory) {
    // Two streams move about half as much again as one; their failures show in what they carry.
    const bool uses_rdma = client->server().uses_rdma;
    while (client->channels_.size() < client->options_.channels) {
      client->open_channel(uses_rdma ? client->options_.transport : TransportChoice::kTcp);
    }
  }
  return client;
}

Client::Client(Private, ClientOptions options, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      identity_(make_client_identity()),
      rdma_(options_.rdma_device) {}

Client::~Client() { close(); }

void Client::open_channel(TransportChoice choice) {
  channels_.push_back(
      std::make_unique<Channel>(options_, identity_, choice, clock_, counters_, crew_, rdma_));
  channels_.back()->start();
}

void Client::close() {
  for (auto& channel : channels_) channel->stop();
  rdma_.memory().clear();
}

void Client::close_after_fork() noexcept {
  for (auto& channel : channels_) channel->close_after_fork();
}

Completions& Client::completions() {
  tells_completions_ = true;
  return completions_;
}

void Client::submit(Batch& batch) {
  const auto by_channel = spread(batch.spec.keys);
  std::vector<std::vector<std::unique_ptr<Request>>> requests(channels_.size());
  std::size_t parts = 0;
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    requests[i] = cut(batch, by_channel[i]);
    parts += requests[i].size();
  }
  Gate* gate = batch.spec.gate.get();
  if (gate != nullptr && gate->state().code == Code::kOk) gate = nullptr;
  if (gate != nullptr) {
    std::vector<Waker*> wakers;
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      if (!requests[i].empty()) wakers.push_back(&channels_[i]->waker());
    }
    gate->watch(std::move(wakers));
  }
  const bool uses_gpu = batch.gpu() != nullptr;
  Crew* const crew = server().shares_memory && !uses_gpu ? &crew_ : nullptr;
  batch.begin(next_id_++, parts, tells_completions_ ? &completions_ : nullptr, crew, uses_gpu);
  // From here on the batch may end, and its owner destroy it, at any moment.
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    if (!requests[i].empty())
      channels_[i]->submit(std::move(requests[i]), !tells_completions_, gate);
  }
}

Error Client::prepare(const Gpu& gpu) {
  for (auto& channel : channels_) {
    auto error = channel->prepare(gpu);
    if (error.code != Code::kOk) return error;
  }
  return {Code::kOk, {}};
}

void Client::submit(Call& call) {
  // Staged values live with their connection, so each is told of the end of all.
  const std::size_t count = call.spec.opcode == Opcode::kAbort ? channels_.size() : 1;
  call.begin(next_id_++, count, tells_completions_ ? &completions_ : nullptr);
  for (std::size_t i = 0; i < count; ++i) send(i, make_call_request(call), !tells_completions_);
}

void Client::post(CallSpec call) {
  send(0, make_call_request(std::make_unique<Call>(std::move(call))), !tells_completions_);
}

void Client::rouse() { channels_[0]->rouse(); }

void Client::send(std::size_t channel, std::unique_ptr<Request> request, bool is_awaited) {
  std::vector<std::unique_ptr<Request>> requests;
  requests.push_back(std::move(request));
  channels_[channel]->submit(std::move(requests), is_awaited, nullptr);
}

void Client::cancel(const Operation& operation) {
  if (operation.is_done()) return;
  for (auto& channel : channels_) channel->cancel(operation.id());
}

bool Client::wait(Operation& operation, Nanos timeout) {
  look_at_sockets(operation, timeout < 0 ? kSecond : timeout);
  return operation.wait(timeout);
}

bool Client::is_done(const Operation& operation) {
  look_at_sockets(operation, 0);
  return operation.is_done();
}

void Client::look_at_sockets(const Operation& operation, Nanos patience) {
  for (auto& channel : channels_) {
    if (!operation.is_done()) channel->wait_at_socket(operation, patience);
  }
}

// A key's channel is always the same: staged values live with their connection.
std::vector<std::vector<std::uint32_t>> Client::spread(const KeyList& keys) const {
  std::vector<std::vector<std::uint32_t>> indexes(channels_.size());
  if (channels_.size() == 1) {
    indexes.front().resize(keys.size());
    std::iota(indexes.front().begin(), indexes.front().end(), 0U);
    return indexes;
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    indexes[hash_key(keys[i]) % channels_.size()].push_back(static_cast<std::uint32_t>(i));
  }
  return indexes;
}

std::vector<std::unique_ptr<Request>> Client::cut(Batch& batch,
                                                  const std::vector<std::uint32_t>& indexes) const {
  const bool uses_gpu = batch.gpu() != nullptr;
  std::uint64_t bytes_max = options_.batch_bytes_max;
  if (uses_gpu) {
    const auto launch = server().shares_memory ? kLaunchBytesMax : kStagedBytesMax;
    bytes_max = std::min(bytes_max, launch);
  }
  const std::uint64_t range_bytes = std::max<std::uint64_t>(batch.spec.range_bytes(), 1);
  std::uint64_t fits = bytes_max / range_bytes;
  if (batch.spec.verb == Verb::kPut) {
    const auto share = server().pool_bytes / kPoolShareOfPuts;
    fits = std::min(fits, share / std::max<std::uint64_t>(batch.spec.pool_bytes(), 1));
  }
  const auto count =
      static_cast<std::size_t>(std::clamp<std::uint64_t>(fits, 1, options_.batch_keys_max));
  const auto first =
      static_cast<std::size_t>(std::max<std::uint64_t>(kFirstLaunchBytes / range_bytes, 1));
  std::size_t step = uses_gpu ? std::min(first, count) : count;
  std::vector<std::unique_ptr<Request>> requests;
  for (std::size_t begin = 0, end = 0; begin < indexes.size(); begin = end) {
    const std::size_t rest = indexes.size() - begin;
    end = begin + std::min(rest, uses_gpu ? std::min(step, std::max(rest / 2, 2 * first)) : step);
    step = std::min(step + (step + 1) / 2, count);
    std::vector<std::uint32_t> part(indexes.begin() + static_cast<std::ptrdiff_t>(begin),
                                    indexes.begin() + static_cast<std::ptrdiff_t>(end));
    requests.push_back(batch.spec.verb == Verb::kPut ? make_put_request(batch, std::move(part))
                                                     : make_get_request(batch, std::move(part)));
  }
  return requests;
}

}  // namespace infinistore
