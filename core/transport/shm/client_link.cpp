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

enum class Way { kToPool, kToSegments };

class ShmLink final : public Link {
 public:
  ShmLink(Stream& stream, ClientPool pool, bool verifies, Crew& crew)
      : stream_(stream), pool_(std::move(pool)), verifies_(verifies), crew_(crew) {}

  bool shares_memory() const noexcept override { return true; }

  Result<Moved> fill(Transfer& transfer) override {
    FillRequest fill;
    fill.granted_count = static_cast<std::uint32_t>(transfer.items.size());
    if (!copy_all(transfer, Way::kToPool, fill.checksums)) return bad_extents();
    const Code sent = stream_.send(Opcode::kFill, transfer.request_id, encode(fill));
    if (sent != Code::kOk) return Error{sent, "the server reads too slowly"};
    return Moved::kAll;
  }

  Result<Moved> receive(Transfer& transfer) override {
    transfer.is_corrupt.assign(transfer.items.size(), false);
    if (transfer.extents.empty()) {  // few bytes, which come as payload
      transfer.payload = std::make_unique<DataPayload>(transfer, verifies_);
      return Moved::kLater;
    }
    std::vector<std::uint64_t> sums;
    if (!copy_all(transfer, Way::kToSegments, sums)) return bad_extents();
    // The server lets go of what it named with DONE, or after it has closed: in that case other
    // bytes may have come under the copies, and no value is damaged.
    if (stream_.peer_has_closed()) {
      return Error{Code::kDisconnected, "the server closed while its memory was being read"};
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      transfer.is_corrupt[i] = verifies_ && sums[i] != transfer.checksums[i];
    }
    refuse(transfer.request_id);
    return Moved::kAll;
  }

  void refuse(std::uint64_t request_id) override { stream_.send(Opcode::kDone, request_id, {}); }

  void drop(Transfer& transfer) noexcept override {
    if (transfer.payload) static_cast<DataPayload*>(transfer.payload.get())->drop();
  }

 private:
  static Error bad_extents() {
    return {Code::kProtocol, "the server named memory outside of its pool, or of another size"};
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
    if (way == Way::kToSegments && index + 1 < transfer.extents.size()) {
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
      if (way == Way::kToPool) {
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
};

}  // namespace

std::unique_ptr<Link> make_shm_link(Stream& stream, ClientPool pool, bool verifies, Crew& crew) {
  return std::make_unique<ShmLink>(stream, std::move(pool), verifies, crew);
}

}  // namespace infinistore
