#include "core/bench/copy_limit.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace infinistore {
namespace {

std::uint64_t address_of(const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at); }

TEST_CASE("both copy loops move blocks of any size and alignment, and nothing beside them") {
  for (const CopyLoop loop : {CopyLoop::kMemcpy, CopyLoop::kNonTemporal}) {
    for (const std::size_t size : {1U, 31U, 127U, 128U, 161U, 4096U}) {
      for (const std::size_t shift : {0U, 1U, 9U}) {
        CAPTURE(size);
        CAPTURE(shift);
        std::vector<std::byte> from(2 * size + 64);
        std::vector<std::byte> to(2 * size + 64, std::byte{0xEE});
        for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i % 251);
        std::byte* target = to.data() + 8 + shift;
        const std::array sources{address_of(from.data() + size), address_of(from.data())};
        const std::array targets{address_of(target), address_of(target + size)};
        copy_blocks(loop, targets, sources, size);
        CHECK(std::equal(target, target + size, from.data() + size));
        CHECK(std::equal(target + size, target + 2 * size, from.data()));
        CHECK(target[-1] == std::byte{0xEE});
        CHECK(target[2 * size] == std::byte{0xEE});
      }
    }
  }
}

}  // namespace
}  // namespace infinistore
