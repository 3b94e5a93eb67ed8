#include "core/transport/rdma/client_link.h"

#include <utility>

#include "core/base/checksum.h"
#include "core/transport/tcp/client_link.h"
#include "core/wire/codec.h"

namespace infinistore {
namespace {

// Up to here two copies by the kernels cost less than registering, and an order of the device.
constexpr std::uint64_t kInStreamBytesMax = 16 * 1024;

std::uint64_t bytes_of(const Transfer& transfer) noexcept {
  std::uint64_t bytes = 0;
  for (const auto& item : transfer.items) bytes += item.bytes();
  return bytes;
}

std::uint64_t sum_of(const Segments& item) noexcept {
  RunningChecksum sum(item.position);
  for (std::size_t i = 0; i < item.addresses.size(); ++i) sum.add(item.segment(i));
  return sum.finish();
}

class RdmaLink final : public Link {
 public:
  RdmaLink(Stream& stream, QueuePair pair, RdmaClient& client, bool verifies, bool must,
           Waker& waker)
      : stream_(stream),
        tcp_(make_tcp_link(stream, verifies, waker)),
        client_(client),
        pair_(std::move(pair)),
        verifies_(verifies),
        must_(must) {}

  bool shares_memory() const noexcept override { return false; }

  bool exposes() const noexcept override { return true; }

  Result<Body> expose(Transfer& transfer, Bytes body) override {
    Exposure exposure;
    const auto shown = show(transfer, true, exposure);
    if (!shown) return shown.error();
    if (!shown.value()) return Body{};
    return encode(exposure, 1, body);
  }

  Result<Moved> fill(Transfer& transfer) override {
    Exposure exposure;
    const auto shown = show(transfer, false, exposure);
    if (!shown) return shown.error();
    if (!shown.value()) return tcp_->fill(transfer);
    transfer.checksums.clear();
    for (const auto& item : transfer.items) transfer.checksums.push_back(sum_of(item));
    const FillRequest fill{.granted_count = static_cast<std::uint32_t>(transfer.items.size()),
                           .checksums = transfer.checksums};
    const Code sent = stream_.send(Opcode::kFill, transfer.request_id,
                                   encode(exposure, 1, encode(fill)), kFlagFillExposed);
    if (sent != Code::kOk) return Error{sent, "the server reads too slowly"};
    return Moved::kLater;
  }
  Result<Moved> filled(Transfer& transfer) override { return tcp_->filled(transfer); }

  Result<Moved> receive(Transfer& transfer) override {
    if (!transfer.is_placed) return tcp_->receive(transfer);
    transfer.is_corrupt.assign(transfer.items.size(), false);
    for (std::size_t i = 0; verifies_ && i < transfer.items.size(); ++i) {
      transfer.is_corrupt[i] = sum_of(transfer.items[i]) != transfer.checksums[i];
    }
    return Moved::kAll;
  }
  Result<Moved> unpack(Transfer& transfer) override { return tcp_->unpack(transfer); }
  Result<Moved> received(Transfer& transfer) override { return tcp_->received(transfer); }

  Error prepare(const Gpu& gpu) override { return tcp_->prepare(gpu); }
  GpuCopies& copies() noexcept override { return tcp_->copies(); }
  void refuse(std::uint64_t request_id) override { tcp_->refuse(request_id); }
  void drop(Transfer& transfer) noexcept override {
    if (transfer.payload) tcp_->drop(transfer);
  }

 private:
  // False: the bytes go as over TCP.
  Result<bool> show(Transfer& transfer, bool is_writable, Exposure& exposure) {
    if (transfer.gpu() != nullptr || bytes_of(transfer) <= kInStreamBytesMax) return false;
    auto shown = client_.memory().show(pair_.device(), transfer.items, is_writable, exposure);
    if (shown && encoded_bytes(exposure, 1) <= kExposureBytesMax) {
      transfer.shown = std::move(*shown);
      return true;
    }
    const bool is_small_matter = shown || shown.code() == Code::kTooLarge;
    if (must_ && !is_small_matter) return shown.error();
    return false;
  }

  Stream& stream_;
  const std::unique_ptr<Link> tcp_;
  RdmaClient& client_;
  QueuePair pair_;  // once it has ended, the server's device reaches nothing
  const bool verifies_;
  const bool must_;
};

}  // namespace

std::unique_ptr<Link> make_rdma_link(Stream& stream, QueuePair pair, RdmaClient& client,
                                     bool verifies, bool must, Waker& waker) {
  return std::make_unique<RdmaLink>(stream, std::move(pair), client, verifies, must, waker);
}

}  // namespace infinistore
