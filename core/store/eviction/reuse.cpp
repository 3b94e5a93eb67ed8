// Reuse: what is least likely to be used soon leaves first, as the store's own past has it.
//
// A ReuseModel gives the worth of keeping an entry by its kind (new, or used before: a key counts
// as returning even if it was evicted in between) and its age.  Entries of a kind stand in the
// order of their uses.  Worth does not always fall with age (a prompt comes back after its answer
// was read, not before), so that two lines of each kind are weighed: one from the oldest on, and
// one from those on that are so large a part as old as the oldest of all (ReuseTuning).  The
// youngest stay: what was just written can be read for a while.
//
// A block is worth nothing without those before it in its chain, and its chain lies over all
// shards.  So a chain leaves from its end (for each block before it an entry counts as used two
// uses earlier than it was), which line is next is decided for the whole store, and no block is
// taken for new whose chain is returning.
#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "core/base/intrusive_list.h"
#include "core/store/eviction/policies.h"
#include "core/store/eviction/reuse_model.h"

namespace infinistore {
namespace {

// Which keys were used in this epoch of the model and the one before.  Never forgets one of them: a
// forgotten block would leave a hole in its chain.  Takes one key in fifty for another.
class SeenKeys {
 public:
  // Returns whether it was there.
  bool add(std::uint64_t hash, std::uint64_t epoch) noexcept {
    if (epoch != epoch_) turn_to(epoch);
    Word& word = words_[hash & (words_.size() - 1)];
    std::uint64_t mixed = hash * 0xD6E8FEB86659FD93ULL;
    std::uint64_t bits = 0;
    for (int i = 0; i < kBitsPerKey; ++i, mixed <<= 6) bits |= std::uint64_t{1} << (mixed >> 58);
    const bool was_there = (word.now & bits) == bits || (word.before & bits) == bits;
    word.now |= bits;
    return was_there;
  }
  void expect(std::uint64_t hash) const noexcept {
    __builtin_prefetch(&words_[hash & (words_.size() - 1)]);
  }
  std::size_t capacity() const noexcept { return words_.size() * kKeysPerWord; }  // of an epoch
  void grow() {  // what stands in a word may have come from either of two
    const std::size_t half = words_.size();
    words_.resize(half * 2);
    std::copy_n(words_.begin(), half, words_.begin() + static_cast<std::ptrdiff_t>(half));
  }

 private:
  static constexpr std::size_t kKeysPerWord = 6;
  static constexpr int kBitsPerKey = 4;
  struct Word {
    std::uint64_t now = 0;
    std::uint64_t before = 0;
  };

  void turn_to(std::uint64_t epoch) noexcept {
    for (Word& word : words_) word = {.now = 0, .before = epoch == epoch_ + 1 ? word.now : 0};
    epoch_ = epoch;
  }

  std::vector<Word> words_ = std::vector<Word>(8);  // a power of two
  std::uint64_t epoch_ = 0;
};

class Reuse final : public EvictionPolicy {
 public:
  Reuse(ReuseModel& model, const std::atomic<std::uint64_t>& middle_age,
        const std::size_t& policy_count, std::uint64_t seen_per_entry) noexcept
      : EvictionPolicy(2 * kKinds),
        model_(model),
        middle_age_(middle_age),
        policy_count_(policy_count),
        seen_per_entry_(seen_per_entry) {}

  void insert(Entry& entry, Arrival arrival) noexcept override {
    now_ = std::max(now_, entry.used_at);
    const Kind kind = see(entry) || arrival == Arrival::kHit ? Kind::kReturning : Kind::kNew;
    entry.eviction_mark =
        static_cast<std::uint16_t>(entry.eviction_mark & ~1) | static_cast<std::uint16_t>(kind);
    model_.used(entry.hash, kind, entry.used_at);
    line_up(queue_of(entry), entry);
    const std::uint64_t age_max = middle_age_.load(std::memory_order_relaxed);
    for (Queue& queue : queues_) settle(queue, age_max);
    if (size() * seen_per_entry_ > seen_.capacity()) {
      seen_.grow();
      model_.remember(seen_.capacity() * policy_count_);
    }
  }

  void remove(Entry& entry) noexcept override {
    Queue& queue = queue_of(entry);
    if (queue.middle == &entry) queue.middle = queue.younger(entry);
    queue.by_age.remove(entry);
  }

  void expect(std::uint64_t hash) const noexcept override { seen_.expect(hash); }

  Entry* first(std::size_t line) noexcept override {
    Queue& queue = queues_[line / 2];
    if (queue.by_age.empty()) return nullptr;
    return line % 2 == 0 ? &queue.by_age.front() : queue.middle;
  }
  std::uint64_t place(const Entry& entry) const noexcept override { return used_at(entry); }
  FirstPlaces first_places() const noexcept override {
    FirstPlaces places{};
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      const Queue& queue = queues_[kind];
      places[2 * kind] = queue.by_age.empty() ? kNoPlace : used_at(queue.by_age.front());
      places[2 * kind + 1] = queue.middle == nullptr ? kNoPlace : used_at(*queue.middle);
    }
    return places;
  }

  std::size_t size() const noexcept override {
    return queues_[0].by_age.size() + queues_[1].by_age.size();
  }

 private:
  static constexpr int kStepsMax = 16;  // in a queue, a use

  struct Queue {
    Entry* younger(const Entry& entry) noexcept {
      return entry.hook.next == &by_age.front() ? nullptr : entry.hook.next;
    }
    Entry* older(const Entry& entry) noexcept {
      return &entry == &by_age.front() ? nullptr : entry.hook.prev;
    }
    Entry* youngest() noexcept { return by_age.empty() ? nullptr : by_age.front().hook.prev; }

    IntrusiveList<Entry, &Entry::hook> by_age;  // oldest first
    Entry* middle = nullptr;                    // the oldest that is not older; null: there is none
  };

  // An entry's mark: its kind in bit 0, above it the epoch in which it was seen last, plus one.
  Queue& queue_of(const Entry& entry) noexcept { return queues_[entry.eviction_mark & 1]; }

  // Whether it was seen in this epoch or the last.  One that is known to be there is not looked up:
  // its word is seldom in a cache (`bench_store 1000000 2 reuse`, "find and drop in batches").
  bool see(Entry& entry) noexcept {
    const std::uint64_t epoch = model_.epoch(now_);
    const auto mark = static_cast<std::uint16_t>((epoch + 1) << 1);
    if ((entry.eviction_mark & ~1) == mark) return true;
    entry.eviction_mark = mark;
    return seen_.add(entry.hash, epoch);
  }

  static std::uint64_t used_at(const Entry& entry) noexcept {
    return entry.used_at - std::min<std::uint64_t>(entry.used_at, std::uint64_t{2} * entry.depth);
  }
  std::uint64_t age_of(const Entry& entry) const noexcept { return now_ - used_at(entry); }

  // Chains are written from their start, so that one passes the blocks before it.
  void line_up(Queue& queue, Entry& entry) noexcept {
    Entry* before = queue.youngest();
    for (int step = 0; step < kStepsMax && before != nullptr; ++step) {
      if (used_at(*before) <= used_at(entry)) break;
      before = queue.older(*before);
    }
    queue.by_age.insert_after(before, entry);
    if (queue.middle == nullptr) queue.middle = &entry;
  }

  // Moves the middle to where it belongs; a long way takes several uses.
  void settle(Queue& queue, std::uint64_t age_max) noexcept {
    for (int step = 0; step < kStepsMax; ++step) {
      if (queue.middle != nullptr && age_of(*queue.middle) > age_max) {
        queue.middle = queue.younger(*queue.middle);
        if (queue.middle != nullptr) __builtin_prefetch(queue.middle->hook.next);
        continue;
      }
      Entry* const before = queue.middle != nullptr ? queue.older(*queue.middle) : queue.youngest();
      if (before == nullptr || age_of(*before) > age_max) return;
      queue.middle = before;
    }
  }

  ReuseModel& model_;
  const std::atomic<std::uint64_t>& middle_age_;
  const std::size_t& policy_count_;
  const std::uint64_t seen_per_entry_;
  std::array<Queue, kKinds> queues_;
  SeenKeys seen_;
  std::uint64_t now_ = 0;  // the last use
};

class ReuseScheme final : public EvictionScheme {
 public:
  explicit ReuseScheme(const ReuseTuning& tuning) : tuning_(tuning), model_(tuning) {}

  std::unique_ptr<EvictionPolicy> make_policy() override {
    ++policy_count_;
    return std::make_unique<Reuse>(model_, middle_age_, policy_count_, tuning_.seen_per_entry);
  }

  std::size_t choose(const FirstPlaces& firsts, std::uint64_t now) noexcept override {
    const auto age_of = [&](std::size_t line) { return now - std::min(now, firsts[line]); };
    const std::uint64_t oldest = std::max(age_of(0), age_of(2));
    middle_age_.store(oldest / tuning_.middle_part, std::memory_order_relaxed);
    std::size_t least = age_of(0) >= age_of(2) ? 0 : 2;
    auto least_worth = worth_of(least, age_of(least));
    for (std::size_t line = 0; line < firsts.size(); ++line) {
      if (firsts[line] == kNoPlace || age_of(line) < oldest / tuning_.young_part) continue;
      const auto worth = worth_of(line, age_of(line));
      if (worth < least_worth) {
        least = line;
        least_worth = worth;
      }
    }
    return least;
  }

 private:
  std::uint16_t worth_of(std::size_t line, std::uint64_t age) const noexcept {
    return model_.worth(static_cast<Kind>(line / 2), age);
  }

  const ReuseTuning tuning_;
  ReuseModel model_;
  std::atomic<std::uint64_t> middle_age_{0};  // where the middles begin
  std::size_t policy_count_ = 0;
};

}  // namespace

std::unique_ptr<EvictionScheme> make_reuse(const ReuseTuning& tuning) {
  return std::make_unique<ReuseScheme>(tuning);
}

}  // namespace infinistore
