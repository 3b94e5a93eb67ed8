#include "core/base/metrics.h"

#include <doctest/doctest.h>

namespace infinistore {

TEST_CASE("a histogram counts by powers of two") {
  Log2Histogram histogram;
  CHECK(histogram.picture().count() == 0);
  CHECK(histogram.picture().quantile(0.5) == 0);
  for (const std::uint64_t value : {0, 1, 2, 3, 4, 1000}) histogram.record(value);
  const auto picture = histogram.picture();
  CHECK(picture.count() == 6);
  CHECK(picture.sum == 1010);
  CHECK(picture.count_below(0) == 1);
  CHECK(picture.count_below(1) == 2);
  CHECK(picture.count_below(2) == 4);
  CHECK(picture.count_below(10) == 6);
  CHECK(picture.quantile(0.5) == 4);
  CHECK(picture.quantile(1.0) == 1024);
}

TEST_CASE("a value beyond the last bucket counts in it") {
  Log2Histogram histogram;
  histogram.record(~std::uint64_t{0});
  auto picture = histogram.picture();
  CHECK(picture.count() == 1);
  CHECK(picture.count_below(Log2Histogram::kBuckets - 2) == 0);
  picture.add(histogram.picture());
  CHECK(picture.count() == 2);
}

}  // namespace infinistore
