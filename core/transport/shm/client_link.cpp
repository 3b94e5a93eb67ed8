#include "core/transport/shm/client_link.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "core/base/checksum.h"
#include "core/transport/data_payload.h"
#include "core/transport/segment_cursor.h"
#include "core/wire/codec.h"

namespace infinistore {
namespace {

// What one of the crew takes at a time.
constexpr std::uint64_t kPartBytes = 256 * 1024;

class ShmLink final : public Link {
 public:
  ShmLink(Stream& stream, ClientPool pool, bool verifies, Crew& crew, Waker& waker)
      : stream_(stream), pool_(std::move(pool)), verifies_(verifies), crew_(crew), copies_(waker) {}

  bool shares_memory() const noexcept override { return true; }

  Result<Moved> fill(Transfer& transfer) override {
    if (!pool_.may_write()) {
      return Error{Code::kProtocol, "the server granted memory to who may only read"};
    }
    if (transfer.gpu() != nullptr) return start_copy(transfer, Way::kToHost, true);
    std::vector<std::uint64_t> sums;
    if (!copy_all(transfer, Way::kToHost, sums)) return bad_extents();
    return send_fill(transfer, std::move(sums));
  }

  Result<Moved> filled(Transfer& transfer) override {
    if (transfer.copy->outcome().code != Code::kOk) return transfer.copy->outcome();
    if (transfer.staged.empty()) return send_fill(transfer, transfer.copy->sums());
    enter_staging(transfer);
    std::vector<std::uint64_t> sums;
    if (!copy_all(transfer, Way::kToHost, sums)) return bad_extents();
    if (sums != transfer.copy->sums()) return Error{Code::kSetup, "staged bytes have changed"};
    return send_fill(transfer, std::move(sums));
  }

  Result<Moved> receive(Transfer& transfer) override {
    transfer.is_corrupt.assign(transfer.items.size(), false);
    if (transfer.extents.empty()) {  // few bytes, which come as payload
      if (transfer.gpu() != nullptr) return Error{Code::kProtocol, "a GPU's block came as payload"};
      transfer.payload = std::make_unique<DataPayload>(transfer, verifies_);
      return Moved::kLater;
    }
    if (transfer.gpu() != nullptr) return start_copy(transfer, Way::kToDevice, verifies_);
    std::vector<std::uint64_t> sums;
    if (!copy_all(transfer, Way::kToDevice, sums)) return bad_extents();
    return end_receive(transfer, sums);
  }

  Result<Moved> unpack(Transfer&) override { return Moved::kAll; }

  Result<Moved> received(Transfer& transfer) override {
    if (transfer.copy->outcome().code != Code::kOk) return transfer.copy->outcome();
    // What was staged has been compared, and the server's memory let go of.
    if (!transfer.staged.empty()) return Moved::kAll;
    return end_receive(transfer, verifies_ ? transfer.copy->sums() : std::vector<std::uint64_t>{});
  }

  Error prepare(const Gpu& gpu) override { return pool_.register_all(gpu); }
  GpuCopies& copies() noexcept override { return copies_; }

  void refuse(std::uint64_t request_id) override { stream_.send(Opcode::kDone, request_id, {}); }

  void drop(Transfer& transfer) noexcept override {
    if (transfer.payload) static_cast<DataPayload*>(transfer.payload.get())->drop();
  }

 private:
  static Error bad_extents() {
    return {Code::kProtocol, "the server named memory outside of its pool, or of another size"};
  }

  Result<Moved> send_fill(const Transfer& transfer, std::vector<std::uint64_t> sums) {
    const FillRequest fill{.granted_count = static_cast<std::uint32_t>(transfer.items.size()),
                           .checksums = std::move(sums)};
    const Code sent = stream_.send(Opcode::kFill, transfer.request_id, encode(fill));
    if (sent != Code::kOk) return Error{sent, "the server reads too slowly"};
    return Moved::kAll;
  }

  // `sums`: of what has come, if they are to be compared.
  Result<Moved> end_receive(Transfer& transfer, const std::vector<std::uint64_t>& sums) {
    // The server lets go of what it named with DONE, or after it has closed: in that case other
    // bytes may have come under the copies, and no value is damaged.
    if (stream_.peer_has_closed()) {
      return Error{Code::kDisconnected, "the server closed while its memory was being read"};
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      transfer.is_corrupt[i] = verifies_ && sums[i] != transfer.checksums[i];
    }
    refuse(transfer.request_id);
    transfer.is_let_go = true;
    return Moved::kAll;
  }

  // Lets the GPU copy every item: by way of pinned memory if CUDA does not take the pool.
  Result<Moved> start_copy(Transfer& transfer, Way way, bool sums) {
    if (!registers_) return start_staged(transfer, way);
    TileList tiles;
    for (std::size_t i = 0; i < transfer.items.size(); ++i) {
      SegmentCursor at(transfer.items, i);
      tiles.begin_item(transfer.items[i].position);
      for (const auto& extent : transfer.extents[i]) {
        auto pages = pool_.bytes_for(*transfer.gpu(), extent);
        if (!pages && pages.code() == Code::kSetup) {
          registers_ = false;
          return start_staged(transfer, way);
        }
        if (!pages) return pages.error();
        if (!add_extent(tiles, at, i, *pages)) return bad_extents();
      }
      if (!at.at_end() && at.item() == i) return bad_extents();
    }
    const auto error = copies_.start(transfer, std::move(tiles), way, sums);
    if (error.code != Code::kOk) return error;
    return Moved::kLater;
  }

  Result<Moved> start_staged(Transfer& transfer, Way way) {
    auto error = stage(transfer);
    if (error.code != Code::kOk) return error;
    if (way == Way::kToDevice) {
      enter_staging(transfer);
      std::vector<std::uint64_t> sums;
      if (!copy_all(transfer, Way::kToDevice, sums)) return bad_extents();
      auto ended = end_receive(transfer, sums);
      if (!ended) return ended;
      leave_staging(transfer);
    }
    error = copies_.start_staged(transfer, way, way == Way::kToHost);
    if (error.code != Code::kOk) return error;
    return Moved::kLater;
  }

  // False: the item has not so many bytes left.
  static bool add_extent(TileList& tiles, SegmentCursor& at, std::size_t index,
                         MutableBytes pages) {
    while (!pages.empty()) {
      if (at.at_end() || at.item() != index) return false;
      const auto segment = at.rest();
      const std::size_t step = std::min(segment.size(), pages.size());
      tiles.add(reinterpret_cast<std::uintptr_t>(segment.data()),
                reinterpret_cast<std::uintptr_t>(pages.data()), step);
      at.move(step);
      pages = pages.subspan(step);
    }
    return true;
  }

  // Copies every item, and tells their sums.  False: as copy().
  // Of what is read only if sums are compared.
  bool copy_all(const Transfer& transfer, Way way, std::vector<std::uint64_t>& sums) {
    const std::size_t count = transfer.items.size();
    sums.resize(count);
    std::atomic<bool> all_good{true};
    const auto copy_some = [&](std::size_t first, std::size_t end) {
      SegmentCursor at(transfer.items, first);
      for (std::size_t i = first; i < end; ++i) {
        const auto sum = copy(at, i, transfer, way);
        if (!sum) {
          all_good = false;
          return;
        }
        sums[i] = *sum;
      }
    };
    const std::size_t step = std::max<std::size_t>(kPartBytes / transfer.items[0].bytes(), 1);
    crew_.run((count + step - 1) / step, [&](std::size_t part) {
      copy_some(part * step, std::min(count, (part + 1) * step));
    });
    return all_good;
  }

  // Copies one item, on which the cursor stands.  nullopt: its extents are not what they should be;
  // nothing outside of pool and segments has been touched.
  std::optional<std::uint64_t> copy(SegmentCursor& at, std::size_t index, const Transfer& transfer,
                                    Way way) {
    RunningChecksum sum(transfer.items[index].position);
    const std::byte* next_pages = nullptr;  // of the next item: its extents are mostly one
    if (way == Way::kToDevice && index + 1 < transfer.extents.size()) {
      const auto next = pool_.bytes_of(transfer.extents[index + 1].front());
      if (next) next_pages = next->data();
    }
    for (const auto& extent : transfer.extents[index]) {
      const auto pages = pool_.bytes_of(extent);
      if (!pages || !copy_extent(*pages, at, index, way, next_pages, sum)) return std::nullopt;
    }
    if (!at.at_end() && at.item() == index) return std::nullopt;
    return sum.finish();
  }

  // False: the item has not so many bytes left.
  bool copy_extent(MutableBytes pages, SegmentCursor& at, std::size_t index, Way way,
                   const std::byte* next_pages, RunningChecksum& sum) const {
    while (!pages.empty()) {
      if (at.at_end() || at.item() != index) return false;
      const auto segment = at.rest();
      const std::size_t step = std::min(segment.size(), pages.size());
      if (way == Way::kToHost) {
        sum.copy(pages.data(), segment.first(step), at.ahead().data());
      } else {
        const std::byte* next = step < pages.size() ? pages.data() + step : next_pages;
        if (verifies_) {
          sum.copy(segment.data(), pages.first(step), next);
        } else {
          copy_without_checksum(segment.data(), pages.data(), step, next);
        }
      }
      at.move(step);
      pages = pages.subspan(step);
    }
    return true;
  }

  Stream& stream_;
  ClientPool pool_;
  bool verifies_;
  Crew& crew_;
  bool registers_ = true;  // CUDA takes the pool's memory
  GpuCopies copies_;       // ends before the pool
};

}  // namespace

std::unique_ptr<Link> make_shm_link(Stream& stream, ClientPool pool, bool verifies, Crew& crew,
                                    Waker& waker) {
  return std::make_unique<ShmLink>(stream, std::move(pool), verifies, crew, waker);
}

}  // namespace infinistore
