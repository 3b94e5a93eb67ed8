#include "core/transport/shm/client_link.h"

#include <algorithm>

#include "core/base/checksum.h"
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
    for (std::size_t i = 0; i < transfer.items.size(); ++i) {
      if (i + 1 < transfer.items.size()) {
        const auto next = transfer.items[i + 1].segment(0);
        expect(next.data(), next.size());
      }
      const auto sum = copy(transfer.items[i], transfer.extents[i], Way::kToPool);
      if (!sum) return bad_extents();
      fill.checksums.push_back(*sum);
    }
    const Code sent = stream_.send(Opcode::kFill, transfer.request_id, encode(fill));
    if (sent != Code::kOk) return Error{sent, "the server reads too slowly"};
    return Moved::kAll;
  }

  Result<Moved> receive(Transfer& transfer) override {
    transfer.is_corrupt.assign(transfer.items.size(), false);
    for (std::size_t i = 0; i < transfer.items.size(); ++i) {
      if (i + 1 < transfer.items.size() && !transfer.extents[i + 1].empty()) {
        const auto next = pool_.bytes_of(transfer.extents[i + 1].front());
        if (next) expect(next->data(), next->size());
      }
      const auto sum = copy(transfer.items[i], transfer.extents[i], Way::kToSegments);
      if (!sum) return bad_extents();
      transfer.is_corrupt[i] = verifies_ && *sum != transfer.checksums[i];
    }
    refuse(transfer.request_id);
    return Moved::kAll;
  }

  void refuse(std::uint64_t request_id) override { stream_.send(Opcode::kDone, request_id, {}); }

  void drop(Transfer&) noexcept override {}  // nothing stays under way

 private:
  static Error bad_extents() {
    return {Code::kProtocol, "the server named memory outside of its pool, or of another size"};
  }

  // nullopt: the extents are not what they should be.  Touches nothing outside of pool and
  // segments.
  std::optional<std::uint64_t> copy(const Segments& item, const Extents& extents, Way way) {
    RunningChecksum sum(item.position);
    std::size_t segment = 0;
    std::uint64_t offset = 0;
    for (const auto& extent : extents) {
      auto pages = pool_.bytes_of(extent);
      if (!pages) return std::nullopt;
      while (!pages->empty()) {
        if (offset == item.segment_bytes) {
          ++segment;
          offset = 0;
        }
        if (segment == item.addresses.size()) return std::nullopt;
        if (offset == 0 && way == Way::kToPool && segment + 1 < item.addresses.size()) {
          expect(item.segment(segment + 1).data(), item.segment_bytes);
        }
        const auto rest = item.segment(segment).subspan(offset);
        const std::size_t step = std::min(rest.size(), pages->size());
        const auto to = way == Way::kToPool ? *pages : rest;
        const auto from = way == Way::kToPool ? rest : *pages;
        sum.copy(to.data(), from.first(step));
        *pages = pages->subspan(step);
        offset += step;
      }
    }
    const bool is_whole = segment + 1 == item.addresses.size() && offset == item.segment_bytes;
    return is_whole ? std::optional(sum.finish()) : std::nullopt;
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
