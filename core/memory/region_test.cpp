#include "core/memory/region.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace infinistore {
namespace {

constexpr std::uint64_t kBytes = std::uint64_t{4} << 20;
constexpr uid_t kNobody = 65534;

// What a call failed with; 0: it did not.
int map_error(int fd, int rights) {
  void* const base = ::mmap(nullptr, kBytes, rights, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return errno;
  ::munmap(base, kBytes);
  return 0;
}

int reopen_error(int fd, int rights) {
  const UniqueFd fresh(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), rights | O_CLOEXEC));
  return fresh ? 0 : errno;
}

// In a process of another user, who was handed the descriptor.
template <class Call>
int as_nobody(Call call) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::setuid(kNobody) == 0 ? call() : 255);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

Region make(HugePages huge_pages) {
  auto region = Region::create(kBytes, huge_pages);
  REQUIRE_MESSAGE(region.ok(), region.error().message);
  return std::move(*region);
}

void check_readers_descriptor(const Region& region) {
  const int fd = region.read_only_fd();
  REQUIRE(fd >= 0);
  CHECK((::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY);
  CHECK(map_error(region.fd(), PROT_READ | PROT_WRITE) == 0);
  CHECK(map_error(fd, PROT_READ) == 0);
  CHECK(map_error(fd, PROT_READ | PROT_WRITE) == EACCES);

  void* const base = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0);
  REQUIRE(base != MAP_FAILED);
  CHECK(::mprotect(base, kBytes, PROT_READ | PROT_WRITE) != 0);
  CHECK(errno == EACCES);
  CHECK(::madvise(base, kBytes, MADV_REMOVE) != 0);
  ::munmap(base, kBytes);

  CHECK(::pwrite(fd, "x", 1, 0) < 0);
  CHECK(errno == EBADF);
  CHECK(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBytes) != 0);
  CHECK(errno == EBADF);
}

}  // namespace

TEST_CASE("a reader's descriptor shows the region and lets nobody write to it") {
  Region region = make(HugePages::kOff);
  check_readers_descriptor(region);
  REQUIRE(region.populate(0, kBytes));
  region.base()[12345] = std::byte{77};
  std::byte seen{};
  CHECK(::pread(region.read_only_fd(), &seen, 1, 12345) == 1);
  CHECK(seen == std::byte{77});
}

TEST_CASE("so does one of huge pages") {
  auto region = Region::create(kBytes, HugePages::kOn);
  if (!region) {
    MESSAGE("left out: " << region.error().message);
    return;
  }
  check_readers_descriptor(*region);
}

TEST_CASE("a region that has moved keeps its reader's descriptor") {
  Region region = make(HugePages::kOff);
  const int fd = region.read_only_fd();
  const Region moved = std::move(region);
  CHECK(moved.read_only_fd() == fd);
}

TEST_CASE("another user cannot open a reader's descriptor anew for writing, nor widen its mode") {
  const Region region = make(HugePages::kOff);
  struct stat status{};
  REQUIRE(::fstat(region.fd(), &status) == 0);
  CHECK((status.st_mode & 07777) == S_IRUSR);  // a memfd begins with 0777
  if (::geteuid() != 0) {
    MESSAGE("the rest is left out: only root can become another user");
    return;
  }
  const int fd = region.read_only_fd();
  CHECK(as_nobody([&] { return map_error(fd, PROT_READ); }) == 0);
  CHECK(as_nobody([&] { return map_error(fd, PROT_READ | PROT_WRITE); }) == EACCES);
  CHECK(as_nobody([&] { return reopen_error(fd, O_RDWR); }) == EACCES);
  CHECK(as_nobody([&] { return ::fchmod(fd, 0777) == 0 ? 0 : errno; }) == EPERM);
}

}  // namespace infinistore
