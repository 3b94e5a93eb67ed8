#include "core/transport/shm/client_link.h"

#include <algorithm>
#include <optional>

#include "core/base/checksum.h"
#include "core/transport/arrival.h"
#include "core/transport/segment_cursor.h"
#include "core/wire/codec.h"

namespace infinistore {
namespace {

enum class Way { kToPool, kToSegments };

class ShmLink final : public Link {
 public:
  ShmLink(Stream& stream, ClientPool pool, bool verifies)
      : stream_(stream), pool_(std::move(pool)), verifies_(verifies) {}

  bool shares_memory() const noexcept override { return true; }

  Result<Moved> fill(Transfer& transfer) override {
    FillRequest fill;
    fill.granted_count = static_cast<std::uint32_t>(transfer.items.size());
    SegmentCursor from(transfer.items);
    for (std::size_t i = 0; i < transfer.items.size(); ++i) {
      const auto sum = copy(from, i, transfer, Way::kToPool);
      if (!sum) return bad_extents();
      fill.checksums.push_back(*sum);
    }
    const Code sent = stream_.send(Opcode::kFill, transfer.request_id, encode(fill));
    if (sent != Code::kOk) return Error{sent, "the server reads too slowly"};
    return Moved::kAll;
  }

  Result<Moved> receive(Transfer& transfer) override {
    transfer.is_corrupt.assign(transfer.items.size(), false);
    if (transfer.extents.empty()) {  // few bytes, which come as payload
      transfer.payload = std::make_unique<Arrival>(transfer, verifies_);
      return Moved::kLater;
    }
    SegmentCursor to(transfer.items);
    for (std::size_t i = 0; i < transfer.items.size(); ++i) {
      const auto sum = copy(to, i, transfer, Way::kToSegments);
      if (!sum) return bad_extents();
      transfer.is_corrupt[i] = verifies_ && *sum != transfer.checksums[i];
    }
    refuse(transfer.request_id);
    return Moved::kAll;
  }

  void refuse(std::uint64_t request_id) override { stream_.send(Opcode::kDone, request_id, {}); }

  void drop(Transfer& transfer) noexcept override {
    if (transfer.payload) static_cast<Arrival*>(transfer.payload.get())->drop();
  }

 private:
  static Error bad_extents() {
    return {Code::kProtocol, "the server named memory outside of its pool, or of another size"};
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
  static bool copy_extent(MutableBytes pages, SegmentCursor& at, std::size_t index, Way way,
                          const std::byte* next_pages, RunningChecksum& sum) {
    while (!pages.empty()) {
      if (at.at_end() || at.item() != index) return false;
      const auto segment = at.rest();
      const std::size_t step = std::min(segment.size(), pages.size());
      if (way == Way::kToPool) {
        sum.copy(pages.data(), segment.first(step), at.ahead().data());
      } else {
        sum.copy(segment.data(), pages.first(step),
                 step < pages.size() ? pages.data() + step : next_pages);
      }
      at.move(step);
      pages = pages.subspan(step);
    }
    return true;
  }

  Stream& stream_;
  ClientPool pool_;
  bool verifies_;
};

}  // namespace

std::unique_ptr<Link> make_shm_link(Stream& stream, ClientPool pool, bool verifies) {
  return std::make_unique<ShmLink>(stream, std::move(pool), verifies);
}

}  // namespace infinistore
