#include "core/transport/shm/client_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "core/base/limits.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22  // Linux 5.14; older headers lack the names
#define MADV_POPULATE_WRITE 23
#endif

namespace infinistore {
namespace {

constexpr std::size_t kChunkBytes = kPageBytesMax;

Error refusal(std::string what) {
  return {Code::kProtocol, "the server's shared memory cannot be used: " + std::move(what)};
}

}  // namespace

void ClientPool::Unmap::operator()(std::byte* base) const noexcept { ::munmap(base, bytes); }

Result<ClientPool> ClientPool::map(std::vector<UniqueFd> fds, std::span<const std::uint64_t> bytes,
                                   PoolAccess access) {
  if (fds.size() != bytes.size() || fds.empty()) {
    return refusal(std::to_string(fds.size()) + " descriptors came for " +
                   std::to_string(bytes.size()) + " regions");
  }
  ClientPool pool(access);
  for (std::size_t i = 0; i < fds.size(); ++i) {
    auto mapping = map_one(fds[i].get(), bytes[i], access);
    if (!mapping) return mapping.error();
    pool.regions_.push_back(std::move(*mapping));
  }
  return pool;
}

Result<ClientPool::Mapping> ClientPool::map_one(int fd, std::uint64_t bytes, PoolAccess access) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return refusal(std::strerror(errno));
  if (bytes == 0 || status.st_size < 0 || static_cast<std::uint64_t>(status.st_size) < bytes) {
    return refusal("a region of " + std::to_string(bytes) + " bytes has only " +
                   std::to_string(status.st_size));
  }
  // Shrunk while mapped, our next access would end this process.
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return refusal("a region is not sealed");
  const bool may_write = access == PoolAccess::kReadWrite;
  void* const base =
      ::mmap(nullptr, bytes, may_write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return Error{Code::kSetup,
                 std::string("mapping the server's pool failed: ") + std::strerror(errno)};
  }
  // A forked child must not hold on to the pool, and a core file must not hold all of it.
  ::madvise(base, bytes, MADV_DONTFORK);
  ::madvise(base, bytes, MADV_DONTDUMP);
  auto* const begin = static_cast<std::byte*>(base);
  return Mapping{.base = {begin, Unmap{bytes}},
                 .is_mapped = std::vector<bool>((bytes + kChunkBytes - 1) / kChunkBytes),
                 .registered = RegisteredMemory(begin, bytes, may_write)};
}

ClientPool::Mapping* ClientPool::region_of(const Extent& extent) noexcept {
  if (extent.region >= regions_.size()) return nullptr;
  auto& region = regions_[extent.region];
  const std::size_t size = region.base.get_deleter().bytes;
  const bool is_inside =
      extent.bytes > 0 && extent.bytes <= size && extent.offset <= size - extent.bytes;
  return is_inside ? &region : nullptr;
}

std::optional<MutableBytes> ClientPool::bytes_of(const Extent& extent) noexcept {
  Mapping* const found = region_of(extent);
  if (found == nullptr) return std::nullopt;
  auto& region = *found;
  const std::size_t size = region.base.get_deleter().bytes;
  // The server has these pages: one call maps a chunk of them, instead of a fault for each.
  for (std::size_t chunk = extent.offset / kChunkBytes;
       chunk <= (extent.offset + extent.bytes - 1) / kChunkBytes; ++chunk) {
    if (region.is_mapped[chunk]) continue;
    region.is_mapped[chunk] = true;
    const std::size_t at = chunk * kChunkBytes;
    ::madvise(region.base.get() + at, std::min(kChunkBytes, size - at),
              may_write() ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  }
  return MutableBytes(region.base.get() + extent.offset, extent.bytes);
}

Result<MutableBytes> ClientPool::bytes_for(const Gpu& gpu, const Extent& extent) {
  Mapping* const region = region_of(extent);
  if (region == nullptr)
    return Error{Code::kProtocol, "the server named memory outside of its pool"};
  const auto error = region->registered.cover(gpu, extent.offset, extent.bytes);
  if (error.code != Code::kOk) return error;
  return MutableBytes(region->base.get() + extent.offset, extent.bytes);
}

Error ClientPool::register_all(const Gpu& gpu) {
  for (auto& region : regions_) {
    const auto error = region.registered.cover(gpu, 0, region.base.get_deleter().bytes);
    if (error.code != Code::kOk) return error;
  }
  return {Code::kOk, {}};
}

}  // namespace infinistore
