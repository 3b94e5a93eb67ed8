#include "core/transport/tcp/client_link.h"

#include <algorithm>
#include <array>

#include "core/base/check.h"
#include "core/base/checksum.h"
#include "core/transport/data_payload.h"
#include "core/transport/segment_cursor.h"
#include "core/wire/codec.h"

namespace infinistore {
namespace {

// FILL's payload: the items, then their sums.
//
// Bytes are summed after they were sent, not before: the kernel's copy waits for memory anyway, and
// leaves them in the caches.  It saves 4 to 10 % of both ends' CPU time (64 KiB to 1 MiB,
// measured).  Only the last call's bytes are summed first, so that the sums leave with them.
// What a GPU has summed is not summed again.
class Gather final : public Payload {
 public:
  explicit Gather(Transfer& transfer)
      : transfer_(transfer),
        sent_(transfer.items),
        summed_(transfer.items),
        sum_(first_position()),
        is_summed_(!transfer.checksums.empty()) {
    transfer_.checksums.reserve(transfer_.items.size());
  }

  std::size_t peek(std::span<iovec> pieces) noexcept override {
    SegmentCursor end = sent_;
    std::size_t count = 0;
    std::size_t bytes = 0;
    while (count < pieces.size() && !end.at_end() && bytes < kCallBytes) {
      const std::size_t step = std::min(end.rest().size(), kCallBytes - bytes);
      pieces[count++] = {end.rest().data(), step};
      bytes += step;
      end.move(step);
    }
    if (end.at_end() && count < pieces.size()) {
      sum(bytes);
      const auto sums = std::as_writable_bytes(std::span(transfer_.checksums)).subspan(trailer_);
      if (!sums.empty()) pieces[count++] = {sums.data(), sums.size()};
    }
    return count;
  }

  void advance(std::size_t bytes) noexcept override {
    while (bytes > 0 && !sent_.at_end()) {
      const std::size_t step = std::min(bytes, sent_.rest().size());
      sum(step);
      sent_.move(step);
      sent_bytes_ += step;
      bytes -= step;
    }
    trailer_ += bytes;
  }

 private:
  std::uint64_t first_position() const noexcept {
    return transfer_.items.empty() ? 0 : transfer_.items.front().position;
  }

  // Sums until `ahead` bytes past what has been sent.
  void sum(std::size_t ahead) noexcept {
    if (is_summed_) return;
    const std::uint64_t goal = sent_bytes_ + ahead;
    while (summed_bytes_ < goal) {
      const auto step = static_cast<std::size_t>(
          std::min<std::uint64_t>(summed_.rest().size(), goal - summed_bytes_));
      const bool is_last = summed_.is_last_of_item(step);
      sum_.add(summed_.rest().first(step));
      summed_.move(step);
      summed_bytes_ += step;
      if (is_last) {
        transfer_.checksums.push_back(sum_.finish());
        sum_ = RunningChecksum(summed_.at_end() ? 0 : transfer_.items[summed_.item()].position);
      }
    }
  }

  Transfer& transfer_;
  SegmentCursor sent_;
  SegmentCursor summed_;
  RunningChecksum sum_;
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t summed_bytes_ = 0;
  std::size_t trailer_ = 0;  // bytes of the sums that have been sent
  const bool is_summed_;
};

class TcpLink final : public Link {
 public:
  TcpLink(Stream& stream, bool verifies, Waker& waker)
      : stream_(stream), verifies_(verifies), copies_(waker) {}

  bool shares_memory() const noexcept override { return false; }

  Result<Moved> fill(Transfer& transfer) override {
    if (transfer.gpu() == nullptr) return send(transfer);
    const auto staged = stage(transfer);
    if (staged.code != Code::kOk) return staged;
    return start_copy(transfer, Way::kToHost, true);
  }

  Result<Moved> filled(Transfer& transfer) override {
    if (transfer.copy->outcome().code != Code::kOk) return transfer.copy->outcome();
    transfer.checksums = transfer.copy->sums();
    enter_staging(transfer);
    return send(transfer);
  }

  Result<Moved> receive(Transfer& transfer) override {
    transfer.is_corrupt.assign(transfer.items.size(), false);
    if (transfer.gpu() == nullptr) {
      transfer.payload = std::make_unique<DataPayload>(transfer, verifies_);
      return Moved::kLater;
    }
    const auto staged = stage(transfer);
    if (staged.code != Code::kOk) return staged;
    enter_staging(transfer);
    transfer.payload = std::make_unique<DataPayload>(transfer, false);  // the GPU sums
    return Moved::kLater;
  }

  Result<Moved> unpack(Transfer& transfer) override {
    if (transfer.targets.empty()) return Moved::kAll;
    leave_staging(transfer);
    return start_copy(transfer, Way::kToDevice, verifies_);
  }

  Result<Moved> received(Transfer& transfer) override {
    if (transfer.copy->outcome().code != Code::kOk) return transfer.copy->outcome();
    if (!verifies_) return Moved::kAll;
    const auto sums = transfer.copy->sums();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      transfer.is_corrupt[i] = sums[i] != transfer.checksums[i];
    }
    return Moved::kAll;
  }

  Error prepare(const Gpu&) override { return {Code::kOk, {}}; }
  GpuCopies& copies() noexcept override { return copies_; }

  void refuse(std::uint64_t) override {}  // its bytes come anyway

  void drop(Transfer& transfer) noexcept override {
    static_cast<DataPayload*>(transfer.payload.get())->drop();  // receive() made it
  }

 private:
  Result<Moved> send(Transfer& transfer) {
    std::uint64_t bytes = transfer.items.size() * sizeof(std::uint64_t);
    for (const auto& item : transfer.items) bytes += item.bytes();
    KV_CHECK(bytes <= kPayloadBytesMax);
    const FillRequest fill{.granted_count = static_cast<std::uint32_t>(transfer.items.size()),
                           .checksums = {}};
    transfer.payload = std::make_unique<Gather>(transfer);
    const Code sent = stream_.send(Opcode::kFill, transfer.request_id, encode(fill), 0,
                                   transfer.payload.get(), bytes);
    if (sent != Code::kOk) return Error{sent, "the server reads too slowly"};
    return Moved::kLater;
  }

  Result<Moved> start_copy(Transfer& transfer, Way way, bool sums) {
    const auto error = copies_.start_staged(transfer, way, sums);
    if (error.code != Code::kOk) return error;
    return Moved::kLater;
  }

  Stream& stream_;
  bool verifies_;
  GpuCopies copies_;
};

}  // namespace

std::unique_ptr<Link> make_tcp_link(Stream& stream, bool verifies, Waker& waker) {
  return std::make_unique<TcpLink>(stream, verifies, waker);
}

}  // namespace infinistore
