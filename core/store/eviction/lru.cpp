// Least recently used first.
#include "core/base/intrusive_list.h"
#include "core/store/eviction/policies.h"

namespace infinistore {
namespace {

class Lru final : public EvictionPolicy {
 public:
  Lru() noexcept : EvictionPolicy(1) {}

  void insert(Entry& entry, Arrival) noexcept override { by_age_.push_back(entry); }
  void remove(Entry& entry) noexcept override { by_age_.remove(entry); }
  Entry* first(std::size_t) noexcept override {
    return by_age_.empty() ? nullptr : &by_age_.front();
  }
  FirstPlaces first_places() const noexcept override {
    return {by_age_.empty() ? kNoPlace : by_age_.front().used_at};
  }
  std::size_t size() const noexcept override { return by_age_.size(); }

 private:
  IntrusiveList<Entry, &Entry::hook> by_age_;  // oldest first
};

class LruScheme final : public EvictionScheme {
 public:
  std::unique_ptr<EvictionPolicy> make_policy() override { return std::make_unique<Lru>(); }
  std::size_t choose(const FirstPlaces&, std::uint64_t) noexcept override { return 0; }
};

}  // namespace

std::unique_ptr<EvictionScheme> make_lru() { return std::make_unique<LruScheme>(); }

}  // namespace infinistore
