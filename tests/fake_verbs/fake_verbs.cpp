// The double of libibverbs (double.h).  A thread carries out orders in turn, as a device would:
// after the call that posted them, and never for a queue pair that has ended.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/transport/rdma/verbs/verbs.h"
#include "tests/fake_verbs/double.h"

#define SHOWN extern "C" __attribute__((visibility("default")))

namespace infinistore {
namespace {

constexpr int kStatusFlushed = 5;
constexpr int kStatusLocalProtection = 4;
constexpr int kStatusRemoteAccess = 10;
constexpr int kStatusRetriesExceeded = 12;

struct FakeCq {
  IbvCq base{};
  std::size_t room = 0;
  std::deque<IbvWc> completions;
  bool is_armed = false;
};

struct Order {
  IbvSendWr post{};
  IbvSge place{};
};

struct FakeQp {
  IbvQp base{};
  FakeCq* cq = nullptr;
  int state = 0;
  std::uint32_t peer = 0;
  std::size_t orders_max = 0;
  std::deque<Order> orders;
};

struct Registration {
  IbvMr base{};
  int access = 0;
};

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint32_t, std::unique_ptr<FakeQp>> pairs;
  std::map<std::uint32_t, std::unique_ptr<Registration>> registrations;
  std::vector<std::unique_ptr<FakeCq>> queues;
  std::uint32_t next_qp = 100;
  std::uint32_t next_key = 1000;
  int fail_status = 0, fail_count = 0;
  bool is_up = true;
  unsigned long long memory_max = ~0ULL;
  int memory_error = 0;
  unsigned long long memory = 0;
  int orders_seen = 0, overflows = 0;
  bool ends = false;
  std::thread device;

  World() : device([this] { run(); }) {}
  ~World() {
    {
      const std::lock_guard lock(mutex);
      ends = true;
    }
    changed.notify_all();
    device.join();
  }
  void run();
  int carry_out(FakeQp& qp, const Order& order);
  void complete(FakeQp& qp, const Order& order, int status);
  bool covers(std::uint32_t key, std::uint64_t address, std::uint64_t bytes, int access) const;
};

World& world() {
  static World one;
  return one;
}

bool World::covers(std::uint32_t key, std::uint64_t address, std::uint64_t bytes,
                   int access) const {
  const auto found = registrations.find(key);
  if (found == registrations.end() || (found->second->access & access) != access) return false;
  const auto base = reinterpret_cast<std::uintptr_t>(found->second->base.address);
  return address >= base && address + bytes <= base + found->second->base.bytes;
}

// What a device does to memory no sanitizer of threads sees; volatile: nor makes a memcpy() of it.
__attribute__((no_sanitize("thread"))) void dma(volatile std::byte* to,
                                                const volatile std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) to[i] = from[i];
}

int World::carry_out(FakeQp& qp, const Order& order) {
  if (fail_count > 0) {
    --fail_count;
    return fail_status;
  }
  if (!is_up || pairs.find(qp.peer) == pairs.end()) return kStatusRetriesExceeded;
  const bool reads = order.post.opcode == kIbvRdmaRead;
  const auto bytes = order.place.bytes;
  if (!covers(order.place.local_key, order.place.address, bytes, reads ? kIbvLocalWrite : 0)) {
    return kStatusLocalProtection;
  }
  if (!covers(order.post.remote_key, order.post.remote_address, bytes,
              reads ? kIbvRemoteRead : kIbvRemoteWrite)) {
    return kStatusRemoteAccess;
  }
  auto* const local = reinterpret_cast<std::byte*>(order.place.address);
  auto* const remote = reinterpret_cast<std::byte*>(order.post.remote_address);
  dma(reads ? local : remote, reads ? remote : local, bytes);
  return 0;
}

void World::complete(FakeQp& qp, const Order& order, int status) {
  if (status == 0 && (order.post.flags & kIbvSignaled) == 0) return;
  auto& cq = *qp.cq;
  if (cq.completions.size() == cq.room) ++overflows;
  IbvWc done{};
  done.id = order.post.id;
  done.status = status;
  done.vendor_error = status == 0 ? 0 : 0x77;
  done.qp_number = qp.base.number;
  cq.completions.push_back(done);
  if (cq.is_armed && cq.base.channel != nullptr) {
    cq.is_armed = false;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto put = ::write(cq.base.channel->fd, &one, sizeof one);
  }
}

void World::run() {
  std::unique_lock lock(mutex);
  while (!ends) {
    const auto busy = std::find_if(pairs.begin(), pairs.end(),
                                   [](const auto& one) { return !one.second->orders.empty(); });
    if (busy == pairs.end()) {
      changed.wait(lock);
      continue;
    }
    auto& qp = *busy->second;
    const Order order = qp.orders.front();
    const int status = qp.state == kIbvQpError ? kStatusFlushed : carry_out(qp, order);
    if (status != 0) qp.state = kIbvQpError;
    qp.orders.pop_front();
    complete(qp, order, status);
    lock.unlock();
    std::this_thread::yield();  // others may come between two orders
    lock.lock();
  }
}

int post_send(IbvQp* base, IbvSendWr* first, IbvSendWr** bad) {
  auto& it = world();
  const std::lock_guard lock(it.mutex);
  auto& qp = *it.pairs.at(base->number);
  for (auto* post = first; post != nullptr; post = post->next) {
    if (qp.orders.size() == qp.orders_max || qp.state < kIbvQpReadyToSend) {
      *bad = post;
      return ENOMEM;
    }
    qp.orders.push_back({*post, *post->pieces});
    it.orders_seen = std::max(it.orders_seen, static_cast<int>(qp.orders.size()));
  }
  it.changed.notify_all();
  return 0;
}

int poll_cq(IbvCq* base, int count, IbvWc* completions) {
  auto& it = world();
  const std::lock_guard lock(it.mutex);
  auto& cq = *reinterpret_cast<FakeCq*>(base);
  int taken = 0;
  for (; taken < count && !cq.completions.empty(); ++taken) {
    completions[taken] = cq.completions.front();
    cq.completions.pop_front();
  }
  return taken;
}

int request_notify(IbvCq* base, int) {
  auto& it = world();
  const std::lock_guard lock(it.mutex);
  reinterpret_cast<FakeCq*>(base)->is_armed = true;
  return 0;
}

IbvContext make_context() {
  IbvContext context{};
  context.calls.post_send = post_send;
  context.calls.poll_cq = poll_cq;
  context.calls.request_notify = request_notify;
  return context;
}
IbvContext the_context = make_context();
IbvPd the_pd{&the_context, 1};
IbvDevice* the_list[] = {reinterpret_cast<IbvDevice*>(&the_pd), nullptr};

Gid the_gid() {
  Gid gid{};
  gid[10] = gid[11] = std::byte{0xFF};
  gid[12] = std::byte{127};
  gid[15] = std::byte{1};
  return gid;
}

}  // namespace

SHOWN IbvDevice** ibv_get_device_list(int* count) {
  *count = 1;
  return the_list;
}
SHOWN void ibv_free_device_list(IbvDevice**) {}
SHOWN const char* ibv_get_device_name(IbvDevice*) { return "fake0"; }
SHOWN IbvContext* ibv_open_device(IbvDevice*) { return &the_context; }
SHOWN int ibv_close_device(IbvContext*) { return 0; }
SHOWN int ibv_query_device(IbvContext*, IbvDeviceAttributes* attributes) {
  *attributes = {};
  attributes->qp_wr_max = 64;
  attributes->cqe_max = 64;
  attributes->qp_reads_max = attributes->qp_init_reads_max = 4;
  return 0;
}
SHOWN int ibv_query_port(IbvContext*, std::uint8_t port, IbvPortAttributes* attributes) {
  if (port != 1) return EINVAL;
  *attributes = {};
  const std::lock_guard lock(world().mutex);
  attributes->state = world().is_up ? kIbvPortActive : 1;
  attributes->mtu_active = 3;
  attributes->message_bytes_max = 1u << 30;
  attributes->link_layer = kIbvLinkEthernet;
  return 0;
}
SHOWN std::ptrdiff_t _ibv_query_gid_table(IbvContext*, IbvGidEntry* entries, std::size_t,
                                          std::uint32_t, std::size_t) {
  entries[0] = {.gid = the_gid(), .index = 1, .port = 1, .type = kIbvGidRoceV2, .interface = 1};
  return 1;
}
SHOWN IbvPd* ibv_alloc_pd(IbvContext*) { return &the_pd; }
SHOWN int ibv_dealloc_pd(IbvPd*) { return 0; }

SHOWN IbvMr* ibv_reg_mr(IbvPd* pd, void* address, std::size_t bytes, int access) {
  auto& it = world();
  const std::lock_guard lock(it.mutex);
  if (it.memory + bytes > it.memory_max) {
    errno = it.memory_error;
    return nullptr;
  }
  it.memory += bytes;
  const auto key = it.next_key++;
  auto made = std::make_unique<Registration>();
  made->base = {pd->context, pd, address, bytes, key, key, key};
  made->access = access;
  return &it.registrations.emplace(key, std::move(made)).first->second->base;
}
SHOWN int ibv_dereg_mr(IbvMr* mr) {
  auto& it = world();
  const std::lock_guard lock(it.mutex);
  it.memory -= mr->bytes;
  it.registrations.erase(mr->local_key);
  return 0;
}

SHOWN IbvChannel* ibv_create_comp_channel(IbvContext* context) {
  return std::make_unique<IbvChannel>(
             IbvChannel{context, ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC | EFD_SEMAPHORE), 0})
      .release();
}
SHOWN int ibv_destroy_comp_channel(IbvChannel* channel) {
  ::close(channel->fd);
  const std::unique_ptr<IbvChannel> owner(channel);
  return 0;
}
SHOWN int ibv_get_cq_event(IbvChannel* channel, IbvCq** cq, void**) {
  std::uint64_t value = 0;
  if (::read(channel->fd, &value, sizeof value) != sizeof value) return -1;
  *cq = nullptr;
  return 0;
}
SHOWN void ibv_ack_cq_events(IbvCq*, unsigned) {}
SHOWN IbvCq* ibv_create_cq(IbvContext* context, int entries, void*, IbvChannel* channel, int) {
  auto& it = world();
  const std::lock_guard lock(it.mutex);
  it.queues.push_back(std::make_unique<FakeCq>());
  auto& made = *it.queues.back();
  made.base = {context, channel};
  made.room = static_cast<std::size_t>(entries);
  return &made.base;
}
SHOWN int ibv_destroy_cq(IbvCq* cq) {
  auto& it = world();
  const std::lock_guard lock(it.mutex);
  std::erase_if(it.queues, [cq](const auto& one) { return &one->base == cq; });
  return 0;
}

SHOWN IbvQp* ibv_create_qp(IbvPd* pd, IbvQpInit* init) {
  auto& it = world();
  const std::lock_guard lock(it.mutex);
  auto made = std::make_unique<FakeQp>();
  made->base = {pd->context, nullptr, pd, init->send_cq, init->receive_cq, nullptr, 0, it.next_qp};
  made->cq = reinterpret_cast<FakeCq*>(init->send_cq);
  made->orders_max = init->capacities.send_wr_max;
  return &it.pairs.emplace(it.next_qp++, std::move(made)).first->second->base;
}
SHOWN int ibv_modify_qp(IbvQp* base, IbvQpAttributes* attributes, int mask) {
  auto& it = world();
  const std::lock_guard lock(it.mutex);
  auto& qp = *it.pairs.at(base->number);
  qp.state = attributes->state;
  if ((mask & kIbvMaskPeerQp) != 0) qp.peer = attributes->peer_qp;
  it.changed.notify_all();
  return 0;
}
SHOWN int ibv_destroy_qp(IbvQp* base) {
  auto& it = world();
  const std::lock_guard lock(it.mutex);
  it.pairs.erase(base->number);
  return 0;
}

SHOWN void fake_verbs_fail_orders(int status, int count) {
  const std::lock_guard lock(world().mutex);
  world().fail_status = status;
  world().fail_count = count;
}
SHOWN void fake_verbs_set_port(int is_up) {
  const std::lock_guard lock(world().mutex);
  world().is_up = is_up != 0;
}
SHOWN void fake_verbs_limit_memory(unsigned long long bytes, int error) {
  const std::lock_guard lock(world().mutex);
  world().memory_max = bytes;
  world().memory_error = error;
}
SHOWN int fake_verbs_orders_seen(void) {
  const std::lock_guard lock(world().mutex);
  return world().orders_seen;
}
SHOWN int fake_verbs_overflows(void) {
  const std::lock_guard lock(world().mutex);
  return world().overflows;
}
SHOWN int fake_verbs_live_registrations(void) {
  const std::lock_guard lock(world().mutex);
  return static_cast<int>(world().registrations.size());
}
SHOWN int fake_verbs_live_queue_pairs(void) {
  const std::lock_guard lock(world().mutex);
  return static_cast<int>(world().pairs.size());
}

}  // namespace infinistore
