#include "core/memory/inline_vector.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace infinistore {
namespace {

using Numbers = InlineVector<std::uint64_t>;

bool equal(const Numbers& ours, const std::vector<std::uint64_t>& model) {
  return std::equal(ours.begin(), ours.end(), model.begin(), model.end());
}

TEST_CASE("copies and moves keep the elements, for one and for many") {
  for (const std::size_t count : {0, 1, 2, 7}) {
    Numbers numbers;
    for (std::size_t i = 0; i < count; ++i) numbers.push_back(i + 10);
    Numbers copy = numbers;
    CHECK(copy == numbers);
    Numbers moved = std::move(copy);
    CHECK(moved == numbers);
    CHECK(copy.empty());  // NOLINT(bugprone-use-after-move): it is promised
    copy.push_back(1);
    CHECK(copy == Numbers{1});
    copy = numbers;
    CHECK(copy == numbers);
    copy = std::move(moved);
    CHECK(copy == numbers);
    const Numbers& itself = copy;
    copy = itself;
    CHECK(copy == numbers);
  }
}

TEST_CASE("an element of its own can be added while it grows") {
  Numbers numbers{1};
  numbers.push_back(numbers.front());
  numbers.push_back(numbers.back());
  CHECK(numbers == Numbers{1, 1, 1});
}

TEST_CASE("random steps agree with std::vector") {
  std::mt19937 random(1);  // NOLINT: a fixed seed makes runs alike
  Numbers ours;
  std::vector<std::uint64_t> model;
  for (int step = 0; step < 5'000; ++step) {
    const std::uint64_t value = random();
    const std::size_t at = model.empty() ? 0 : random() % model.size();
    switch (random() % 6) {
      case 0:
      case 1:
        ours.push_back(value);
        model.push_back(value);
        break;
      case 2:
        ours.insert(ours.begin() + at, value);
        model.insert(model.begin() + static_cast<std::ptrdiff_t>(at), value);
        break;
      case 3:
        if (model.empty()) break;
        ours.erase(ours.begin() + at);
        model.erase(model.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      case 4:
        if (random() % 8 != 0) break;
        ours.resize(random() % 4);
        model.resize(ours.size());
        break;
      default:
        if (random() % 50 == 0) {
          ours = {};
          model = {};
        }
    }
    REQUIRE(ours.size() == model.size());
    REQUIRE(equal(ours, model));
    if (model.empty()) continue;
    REQUIRE(ours.front() == model.front());
    REQUIRE(ours.back() == model.back());
    REQUIRE(*ours.rbegin() == *model.rbegin());
  }
}

}  // namespace
}  // namespace infinistore
