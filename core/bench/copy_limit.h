#pragma once
// Copy limit: how fast one thread of this machine copies blocks, with nothing else to do.
//
// A yardstick must not move with what it measures, so these loops share no code with
// core/base/checksum.cpp, whose copies `infinistore bench` holds against them.

#include <cstddef>
#include <cstdint>
#include <span>

namespace infinistore {

enum class CopyLoop : std::uint8_t {
  kMemcpy,       // the C library's
  kNonTemporal,  // AVX2 stores past the caches; memcpy where the CPU has none
};

// Copies block i from address `sources[i]` to address `targets[i]`. The spans are of one length;
// no target may overlap a source.
void copy_blocks(CopyLoop loop, std::span<const std::uint64_t> targets,
                 std::span<const std::uint64_t> sources, std::size_t block_bytes) noexcept;

}  // namespace infinistore
