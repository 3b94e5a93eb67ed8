#pragma once
// Region: one shared memory mapping that other processes can be handed.  RAII.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/fd.h"
#include "core/base/result.h"

namespace infinistore {

enum class HugePages : std::uint8_t { kAuto, kOn, kOff };

class Region {
 public:
  // Maps a memfd of `bytes`, sealed against resizing, not inherited by a fork.  Nothing is
  // populated. kOn needs a multiple of 2 MiB and reserved huge pages; kAuto takes them where that
  // is so.
  static Result<Region> create(std::uint64_t bytes, HugePages huge_pages);

  Region(Region&& other) noexcept;
  Region& operator=(Region&&) = delete;
  ~Region();

  std::byte* base() const noexcept { return base_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  int fd() const noexcept { return fd_.get(); }
  // The same memory through a descriptor that nobody can map for writing; -1: there is no /proc.
  int read_only_fd() const noexcept { return read_only_fd_.get(); }
  bool has_huge_pages() const noexcept { return has_huge_pages_; }

  // Backs the range with memory now, so that no later touch can fail.  False if there is none: what
  // was got is given back.
  bool populate(std::uint64_t offset, std::uint64_t bytes) noexcept;

 private:
  Region(UniqueFd fd, std::byte* base, std::uint64_t bytes, bool has_huge_pages) noexcept
      : fd_(std::move(fd)), base_(base), bytes_(bytes), has_huge_pages_(has_huge_pages) {}

  UniqueFd fd_;
  UniqueFd read_only_fd_;
  std::byte* base_;
  std::uint64_t bytes_;
  bool has_huge_pages_;
};

}  // namespace infinistore
