#include "core/store/ranges/coverage.h"

#include <doctest/doctest.h>

#include "core/base/limits.h"

namespace infinistore {
namespace {

TEST_CASE("ranges fill a value in any order") {
  Coverage coverage(100);
  CHECK(coverage.claim({60, 40}) == Code::kOk);
  CHECK(coverage.claim({0, 60}) == Code::kOk);
  CHECK(coverage.is_claimed());
  coverage.filled({60, 40}, 7);
  CHECK(coverage.filled_bytes() == 40);
  CHECK_FALSE(coverage.is_complete());
  coverage.filled({0, 60}, 8);
  CHECK(coverage.is_complete());
  CHECK_FALSE(coverage.is_claimed());
  CHECK(coverage.filled_ranges() == std::vector<Range>{{0, 100}});
}

TEST_CASE("an equal repeat is recognised, claimed or filled") {
  Coverage coverage(100);
  CHECK(coverage.claim({10, 10}) == Code::kOk);
  CHECK(coverage.claim({10, 10}) == Code::kExists);
  coverage.filled({10, 10}, 1);
  CHECK(coverage.claim({10, 10}) == Code::kExists);
  CHECK(coverage.filled_bytes() == 10);
}

TEST_CASE("a range that overlaps in part, is empty or out of bounds is invalid") {
  Coverage coverage(100);
  REQUIRE(coverage.claim({20, 20}) == Code::kOk);
  for (const Range range :
       {Range{10, 11}, Range{39, 10}, Range{20, 10}, Range{20, 30}, Range{25, 5}, Range{0, 100},
        Range{30, 10}, Range{0, 0}, Range{50, 0}, Range{100, 1}, Range{99, 2}, Range{UINT64_MAX, 2},
        Range{1, UINT64_MAX}}) {
    CAPTURE(range.offset);
    CAPTURE(range.bytes);
    CHECK(coverage.claim(range) == Code::kInvalid);
  }
  CHECK(coverage.claim({10, 10}) == Code::kOk);
  CHECK(coverage.claim({40, 60}) == Code::kOk);
}

TEST_CASE("a range that was given up can be claimed again") {
  Coverage coverage(10);
  REQUIRE(coverage.claim({0, 10}) == Code::kOk);
  coverage.unclaim({0, 10});
  CHECK_FALSE(coverage.is_claimed());
  CHECK(coverage.claim({0, 5}) == Code::kOk);
}

TEST_CASE("a value is filled in a bounded number of ranges") {
  Coverage coverage(kRangesPerValueMax + 1);
  for (std::uint64_t at = 0; at < kRangesPerValueMax; ++at) {
    REQUIRE(coverage.claim({at, 1}) == Code::kOk);
    coverage.filled({at, 1}, 0);
  }
  CHECK(coverage.claim({kRangesPerValueMax, 1}) == Code::kInvalid);
}

TEST_CASE("bounds beyond 4 GiB do not wrap") {
  constexpr std::uint64_t kBytes = (std::uint64_t{9} << 30) + 3;
  Coverage coverage(kBytes);
  const std::uint64_t half = std::uint64_t{5} << 30;
  CHECK(coverage.claim({half, kBytes - half}) == Code::kOk);
  CHECK(coverage.claim({half - 1, 2}) == Code::kInvalid);
  CHECK(coverage.claim({0, half}) == Code::kOk);
  coverage.filled({half, kBytes - half}, 0);
  coverage.filled({0, half}, 0);
  CHECK(coverage.is_complete());
  CHECK(coverage.filled_bytes() == kBytes);
}

TEST_CASE("each put range's checksum is handed to the entry") {
  const auto entry = make_entry({.space = 0, .key = "k", .hash = 1});
  entry->value_bytes = 24;
  Coverage coverage(24);
  for (const std::uint64_t offset : {16, 0, 8}) {
    REQUIRE(coverage.claim({offset, 8}) == Code::kOk);
    coverage.filled({offset, 8}, 100 + offset);
  }
  coverage.hand_over(*entry);
  REQUIRE(entry->parts);
  REQUIRE(entry->parts->size() == 3);
  for (const Part& part : *entry->parts) CHECK(part.checksum == 100 + part.offset);
}

}  // namespace
}  // namespace infinistore
