// bench_store: what the store itself costs, without sockets: lookups, puts, eviction, index memory.
//
//   bench_store [keys] [threads] [policy]      prints one line a figure; small numbers make a smoke
//   run
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <random>
#include <thread>

#include "core/client/keys.h"
#include "core/store/heat/heat.h"
#include "core/store/store_testing.h"

namespace infinistore {
namespace {

// Of this process's CPU, not of the wall: other work on the machine should not count.
double cpu_s() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Keys as the connector makes them: 32 bytes of hash and a suffix.
std::vector<std::string> made_keys(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);  // NOLINT: a fixed seed makes runs alike
  std::vector<std::string> keys(count);
  for (std::string& key : keys) {
    key.resize(32);
    for (std::size_t at = 0; at < 32; at += 8) {
      const std::uint64_t word = random();
      std::memcpy(key.data() + at, &word, 8);
    }
  }
  return keys;
}

// As in a request: one after the other.
KeyList laid_out(const std::vector<std::string>& keys, const std::vector<std::uint32_t>& order) {
  KeyList list;
  for (const std::uint32_t i : order) list.add(keys[i]);
  return list;
}

void say(const char* name, double count, double seconds) {
  std::printf("%-34s %9.2f M/s a core  %8.1f ns\n", name, count / seconds / 1e6,
              seconds / count * 1e9);
}

// Runs body(thread) on so many threads; returns the CPU seconds that all of them took.
template <class Body>
double timed(unsigned threads, Body body) {
  const double start = cpu_s();
  std::vector<std::thread> others;
  for (unsigned thread = 1; thread < threads; ++thread) {
    others.emplace_back([&body, thread] { body(thread); });
  }
  body(0);
  for (auto& other : others) other.join();
  return cpu_s() - start;
}

// A value without its bytes: the store does not look at them.
bool put(Store& store, std::string_view key, std::uint64_t bytes) {
  auto made = store.reserve({.key = key, .value_bytes = bytes});
  if (!made) return false;
  made->claim({.offset = 0, .bytes = bytes});
  made->filled({.offset = 0, .bytes = bytes}, 1);
  return std::move(*made).seal() == Code::kOk;
}

// What the process holds beside the pool, which nobody touches here.
std::size_t heap_bytes() {
  std::ifstream status("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  status >> total >> resident;
  return resident * 4096;
}

int run(std::size_t key_count, unsigned threads, std::string_view policy) {
  const auto keys = made_keys(key_count, 1);
  const auto absent = made_keys(key_count, 2);
  auto pool = Pool::create({.bytes = key_count * kPageBytesMin, .populate_on_touch = true});
  if (!pool) {
    std::fprintf(stderr, "bench_store: %s\n", pool.error().message.c_str());
    return 1;
  }
  const MonotonicClock clock;
  const std::size_t heap_before = heap_bytes();
  Store store(std::move(*pool), testing::options_with(policy), clock);
  const std::size_t heap_empty = heap_bytes();
  std::printf("%zu keys of 32 bytes, %u threads, eviction by %.*s\n", key_count, threads,
              static_cast<int>(policy.size()), policy.data());

  const double count = static_cast<double>(key_count);
  double seconds = timed(1, [&](unsigned) {
    for (const auto& key : keys) put(store, key, 4096);
  });
  say("put into a free pool", count, seconds);
  if (store.counters().keys != key_count) return 1;
  std::printf("%-34s %9.1f bytes a key (and %zu KiB for the empty store)\n", "index memory",
              static_cast<double>(heap_bytes() - heap_empty) / count,
              (heap_empty - heap_before) / 1024);

  std::vector<std::uint32_t> order(key_count);
  for (std::size_t i = 0; i < key_count; ++i) order[i] = static_cast<std::uint32_t>(i);
  std::shuffle(order.begin(), order.end(), std::mt19937(3));  // NOLINT
  const auto each = [&](const char* name, unsigned on, const auto& body) {
    const double taken = timed(on, [&](unsigned thread) {
      for (std::size_t i = thread; i < order.size(); i += on) body(order[i]);
    });
    say(name, count, taken);
  };
  std::atomic<std::size_t> wrong{0};
  each("exists, present", 1, [&](std::size_t i) { wrong += store.exists(0, keys[i]) ? 0 : 1; });
  each("exists, absent", 1, [&](std::size_t i) { wrong += store.exists(0, absent[i]) ? 1 : 0; });
  each("find and drop", 1, [&](std::size_t i) { wrong += store.find(0, keys[i]) ? 0 : 1; });
  each("find and drop, all threads", threads,
       [&](std::size_t i) { wrong += store.find(0, keys[i]) ? 0 : 1; });

  // What a read adds for its heat: few bytes are sampled, many are all counted.
  Heat heat(store, clock, 2 * kSecond);
  for (const std::uint64_t bytes : {4096, 65'536}) {
    each(bytes == 4096 ? "find, heat of 4 KiB and drop" : "find, heat of 64 KiB and drop", 1,
         [&](std::size_t i) {
           const auto lease = store.find(0, keys[i]);
           if (lease) heat.served(std::span(&*lease, 1), std::span(&bytes, 1), clock.now());
           wrong += lease ? 0 : 1;
         });
  }

  // As requests of many keys are served.
  constexpr std::size_t kPrefix = 1024;
  const KeyList present_keys = laid_out(keys, order);
  const KeyList absent_keys = laid_out(absent, order);
  const auto views = present_keys.views(0, key_count);
  const auto absent_views = absent_keys.views(0, key_count);
  const auto in_batches = [&](const char* name, std::span<const std::string_view> all, Expect what,
                              const auto& body) {
    const double taken = timed(1, [&](unsigned) {
      for (std::size_t at = 0; at < all.size(); at += kPrefix) {
        const auto batch = all.subspan(at, std::min(kPrefix, all.size() - at));
        store.for_each_expected(0, batch, what, [&](std::size_t i) { body(batch[i]); });
      }
    });
    say(name, count, taken);
  };
  in_batches("exists in batches, present", views, Expect::kExists,
             [&](auto key) { wrong += store.exists(0, key) ? 0 : 1; });
  in_batches("exists in batches, absent", absent_views, Expect::kExists,
             [&](auto key) { wrong += store.exists(0, key) ? 1 : 0; });
  in_batches("find and drop in batches", views, Expect::kFind,
             [&](auto key) { wrong += store.find(0, key) ? 0 : 1; });
  seconds = timed(1, [&](unsigned) {
    for (std::size_t at = 0; at + kPrefix <= views.size(); at += kPrefix) {
      const std::span<const std::string_view> prefix(views.data() + at, kPrefix);
      wrong += store.match_prefix(0, prefix, 1, nullptr) == kPrefix ? 0 : 1;
    }
  });
  say("match_prefix of 1024, a key", static_cast<double>(views.size() / kPrefix * kPrefix),
      seconds);

  seconds = timed(threads, [&](unsigned thread) {
    for (std::size_t i = thread; i < absent.size(); i += threads) {
      wrong += put(store, absent[i], 4096) ? 0 : 1;
    }
  });
  say("put into a full pool, all threads", count, seconds);
  const std::uint64_t evictions = store.counters().evictions;
  constexpr std::uint64_t kAheadMax = 1024;
  if (evictions < key_count || evictions > key_count + kAheadMax) ++wrong;
  const std::string integrity = store.check_integrity();
  if (!integrity.empty() || wrong > 0) {
    std::fprintf(stderr, "bench_store: %zu wrong answers; %s\n", wrong.load(), integrity.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace infinistore

int main(int argc, char** argv) {
  const std::size_t keys = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000;
  const unsigned threads = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 2;
  const std::string_view policy = argc > 3 ? argv[3] : "lru";
  const auto policies = infinistore::eviction_policy_names();
  if (keys < 1024 || threads == 0 || std::ranges::find(policies, policy) == policies.end()) {
    std::fprintf(stderr, "usage: bench_store [keys, at least 1024] [threads] [policy]\n");
    return 2;
  }
  return infinistore::run(keys, threads, policy);
}
