#include "core/base/intrusive_list.h"

#include <doctest/doctest.h>

#include <array>
#include <vector>

namespace infinistore {
namespace {

struct Node {
  ListHook<Node> hook;
  int number = 0;
};
using List = IntrusiveList<Node, &Node::hook>;

std::vector<int> numbers(const List& list) {
  std::vector<int> found;
  list.for_each([&](const Node& node) { found.push_back(node.number); });
  return found;
}

TEST_CASE("a list keeps the order of arrival whatever is taken out") {
  std::array<Node, 4> nodes;
  List list;
  CHECK(list.empty());
  for (int i = 0; i < 4; ++i) {
    nodes[static_cast<std::size_t>(i)].number = i;
    list.push_back(nodes[static_cast<std::size_t>(i)]);
  }
  CHECK(numbers(list) == std::vector{0, 1, 2, 3});
  list.remove(nodes[0]);
  CHECK(list.front().number == 1);
  list.remove(nodes[2]);
  list.push_back(nodes[0]);
  CHECK(numbers(list) == std::vector{1, 3, 0});
  CHECK(list.size() == 3);
  CHECK_FALSE(nodes[2].hook.is_linked());
}

TEST_CASE("a lone element is linked, and its list is empty without it") {
  Node node;
  List list;
  list.push_back(node);
  CHECK(node.hook.is_linked());
  list.remove(node);
  CHECK_FALSE(node.hook.is_linked());
  CHECK(list.empty());
  list.push_back(node);
  CHECK(&list.front() == &node);
}

TEST_CASE("an element goes in after any other, or before all") {
  std::array<Node, 4> nodes;
  List list;
  for (int i = 0; i < 4; ++i) nodes[static_cast<std::size_t>(i)].number = i;
  list.insert_after(nullptr, nodes[1]);
  list.insert_after(&nodes[1], nodes[3]);
  list.insert_after(&nodes[1], nodes[2]);
  list.insert_after(nullptr, nodes[0]);
  CHECK(numbers(list) == std::vector{0, 1, 2, 3});
  list.remove(nodes[0]);
  list.push_back(nodes[0]);
  CHECK(numbers(list) == std::vector{1, 2, 3, 0});
  CHECK(list.size() == 4);
}

}  // namespace
}  // namespace infinistore
