#include "core/transport/tcp/names.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <resolv.h>

#include <cstring>
#include <memory>
#include <new>
#include <system_error>

#include "core/base/thread.h"
#include "core/transport/fork_hold.h"

namespace infinistore {
namespace {

template <class Sockaddr>
SocketAddresses address_of(const Sockaddr& one) {
  SocketAddresses found(1);
  std::memcpy(&found[0].bytes, &one, sizeof one);
  found[0].size = sizeof one;
  return found;
}

// Of a host that is given as a number; empty: it is a name.
SocketAddresses read_number(const std::string& host, std::uint16_t port) {
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) return address_of(v4);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  if (::inet_pton(AF_INET6, host.c_str(), &v6.sin6_addr) == 1) return address_of(v6);
  return {};
}

struct FreeList {
  void operator()(addrinfo* list) const noexcept { ::freeaddrinfo(list); }
};

// glibc's resolver keeps a state for each thread, and takes a lock when a thread ends that has one;
// so does a later thread on the same stack, which finds the number of servers still set.  No fork
// waits for the end of a thread: so the state goes before, while it does.
class ResolverState {
 public:
  ResolverState() = default;
  ResolverState(const ResolverState&) = delete;
  ResolverState& operator=(const ResolverState&) = delete;
#if defined(__GLIBC__)
  ~ResolverState() {
    ::res_nclose(&_res);
    _res.nscount = 0;
  }
#else
  ~ResolverState() = default;
#endif
};

// On a thread of its own.
Result<SocketAddresses> look_up(const std::string& host, std::uint16_t port) {
  const auto hold = hold_off_forks();
  const ResolverState state;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG;
  addrinfo* list = nullptr;
  const auto service = std::to_string(port);
  int failed = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &list);
  if (failed != 0) {
    hints.ai_flags = AI_NUMERICSERV;  // a machine with nothing but loopback has no "configured" one
    failed = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &list);
  }
  if (failed != 0) {
    return Error{Code::kDisconnected, "host " + host + " is unknown: " + ::gai_strerror(failed)};
  }
  const std::unique_ptr<addrinfo, FreeList> owner(list);
  SocketAddresses found;
  for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
    if (at->ai_addrlen > sizeof(sockaddr_storage)) continue;
    auto& address = found.emplace_back();
    std::memcpy(&address.bytes, at->ai_addr, at->ai_addrlen);
    address.size = at->ai_addrlen;
  }
  return found;
}

// Never destroyed: at the process's end a lookup may run that nobody should wait for.
union ProcessNames {
  ProcessNames() : names(&look_up) {}
  ~ProcessNames() {}  // NOLINT(modernize-use-equals-default): a union's would be deleted
  Names names;
};
ProcessNames& the_names() {
  static ProcessNames names;
  return names;
}

// New, not emptied: the parent's threads that had a part in them are not here.
void in_child() { std::construct_at(&the_names()); }

}  // namespace

Names& process_names() {
  auto& names = the_names().names;
  [[maybe_unused]] static const int guarded = ::pthread_atfork(nullptr, nullptr, &in_child);
  return names;
}

Names::~Names() {
  std::map<Key, Name> names;
  {
    const MutexLock lock(mutex_);
    for (auto& [key, name] : names_) names[key].lookup = std::move(name.lookup);
  }
  for (auto& [key, name] : names) {
    if (name.lookup.joinable()) name.lookup.join();
  }
}

Result<SocketAddresses> Names::find(const std::string& host, std::uint16_t port,
                                    DialDeadline deadline) {
  auto number = read_number(host, port);
  if (!number.empty()) return number;
  const Key key{host, port};
  std::unique_lock lock(mutex_.native());
  auto& name = names_[key];
  const auto ended = name.ended;
  if (!name.is_running) start_locked(key, name);
  // The other half of the time is for connecting to where it was.
  const auto now = std::chrono::steady_clock::now();
  const auto until = name.addresses.empty() ? deadline : now + (deadline - now) / 2;
  const bool is_answered = ended_.wait_until(lock, until, [&] { return name.ended != ended; });
  if (is_answered && !name.is_running && name.lookup.joinable()) name.lookup.join();
  if (!name.addresses.empty()) return name.addresses;
  if (is_answered) return name.failure;
  return Error{Code::kTimeout, "the name service says nothing about host " + host +
                                   "; see /etc/resolv.conf, or give the server's address as a "
                                   "number"};
}

void Names::start_locked(const Key& key, Name& name) {
  if (name.lookup.joinable()) name.lookup.join();  // it has ended but for its last instructions
  const auto run = [this, &key = names_.find(key)->first, &name] {
    auto found = lookup_(key.first, key.second);
    {
      const MutexLock lock(mutex_);
      name.failure = found ? Error{Code::kOk, {}} : found.error();
      if (found) name.addresses = std::move(*found);
      name.is_running = false;
      ++name.ended;
    }
    ended_.notify_all();
  };
  try {
    name.lookup = start_thread("infinistore-dns", run);
    name.is_running = true;
  } catch (const std::system_error& error) {
    name.failure = {Code::kSetup, std::string("no thread is left to look up a name (") +
                                      error.what() + "); raise ulimit -u"};
    ++name.ended;
  }
}

}  // namespace infinistore
