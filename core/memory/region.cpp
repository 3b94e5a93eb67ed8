#include "core/memory/region.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "core/base/limits.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older headers lack the name
#endif

namespace infinistore {
namespace {

Error setup_error(const char* what, std::uint64_t bytes) {
  const int cause = errno;
  return Error{Code::kSetup, std::string(what) + " for a region of " + std::to_string(bytes) +
                                 " bytes: " + std::strerror(cause)};
}

// On failure errno says why.
Result<UniqueFd> sized_memfd(std::uint64_t bytes, unsigned flags) {
  UniqueFd fd(::memfd_create("infinistore-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (!fd) return setup_error("memfd_create failed", bytes);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return setup_error("ftruncate failed", bytes);
  }
  return fd;
}

// MAP_FAILED as nullptr.
std::byte* map_shared(int fd, std::uint64_t bytes) noexcept {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return base == MAP_FAILED ? nullptr : static_cast<std::byte*>(base);
}

// Descriptors that are handed over share how they were opened, so one for readers is opened anew.
UniqueFd reopen_for_reading(int fd) {
  const auto path = "/proc/self/fd/" + std::to_string(fd);
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace

Result<Region> Region::create(std::uint64_t bytes, HugePages huge_pages) {
  const bool can_be_huge = bytes % kPageBytesMax == 0;
  if (huge_pages == HugePages::kOn && !can_be_huge) {
    return Error{Code::kSetup, "huge pages need a region of whole 2 MiB pages, not of " +
                                   std::to_string(bytes) + " bytes"};
  }
  UniqueFd fd;
  std::byte* base = nullptr;
  if (huge_pages != HugePages::kOff && can_be_huge) {
    // The kernel sets the pages aside at mmap, so success here means that they are there.
    if (auto huge = sized_memfd(bytes, MFD_HUGETLB | MFD_HUGE_2MB)) {
      fd = std::move(*huge);
      base = map_shared(fd.get(), bytes);
    }
    if (base == nullptr && huge_pages == HugePages::kOn) {
      return setup_error("no huge pages (see vm.nr_hugepages)", bytes);
    }
  }
  const bool has_huge_pages = base != nullptr;
  if (!has_huge_pages) {
    auto plain = sized_memfd(bytes, 0);
    if (!plain) return plain.error();
    fd = std::move(*plain);
    base = map_shared(fd.get(), bytes);
    if (base == nullptr) return setup_error("mmap failed", bytes);
    // A wish: it has an effect only where the machine lets shared memory have transparent ones.
    if (huge_pages == HugePages::kAuto) ::madvise(base, bytes, MADV_HUGEPAGE);
  }
  Region region(std::move(fd), base, bytes, has_huge_pages);
  // F_SEAL_SEAL: else a client could forbid further writable mappings to all others.
  if (::fcntl(region.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return setup_error("sealing failed", bytes);
  }
  // A memfd begins with mode 0777: whoever holds a descriptor for reading could open it anew.
  if (::fchmod(region.fd(), S_IRUSR) != 0) return setup_error("fchmod failed", bytes);
  region.read_only_fd_ = reopen_for_reading(region.fd());
  ::madvise(base, bytes, MADV_DONTFORK);
  ::madvise(base, bytes, MADV_DONTDUMP);
  return region;
}

Region::Region(Region&& other) noexcept
    : fd_(std::move(other.fd_)),
      read_only_fd_(std::move(other.read_only_fd_)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(other.bytes_),
      has_huge_pages_(other.has_huge_pages_) {}

Region::~Region() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

bool Region::populate(std::uint64_t offset, std::uint64_t bytes) noexcept {
  int result = 0;
  do {
    result = ::madvise(base_ + offset, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  const auto fd_offset = static_cast<off_t>(offset);
  const auto fd_bytes = static_cast<off_t>(bytes);
  if (errno == EINVAL) {  // a kernel before 5.14: allocates as well, but maps at first touch
    do {
      result = ::fallocate(fd_.get(), 0, fd_offset, fd_bytes);
    } while (result != 0 && errno == EINTR);
    if (result == 0) return true;
  }
  ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, fd_offset, fd_bytes);
  return false;
}

}  // namespace infinistore
