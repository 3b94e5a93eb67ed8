"""Nodes and views as JSON: what was written is read, and anything else is refused by its name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinistore.cluster.nodes import (
    NODES_MAX,
    STATES,
    Node,
    View,
    decode_node,
    decode_view,
    encode_node,
    encode_view,
)
from infinistore.errors import ConfigError

TEXTS = st.text("abcz019.:[]-_é", min_size=1, max_size=40)
NODES = st.builds(
    Node,
    TEXTS,
    TEXTS,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.sampled_from(STATES),
)


@given(st.lists(NODES, max_size=8, unique_by=lambda node: node.name), st.integers(0, 2**60))
def test_a_view_is_read_as_it_was_written(nodes: list[Node], version: int) -> None:
    view = View.of(nodes, version)
    assert decode_view(encode_view(view)) == view
    assert list(view.nodes) == sorted(nodes)
    for node in nodes:
        assert decode_node(encode_node(node)) == node
        assert view.find(node.name) == node
    assert view.find("nobody") is None


def test_what_is_not_said_has_a_default_and_what_is_new_is_ignored() -> None:
    node = decode_node('{"name": "a", "address": "h:1", "colour": "red"}')
    assert node == Node("a", "h:1", 0, 0, "up")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": ""}, "name is ''"),
        ({"name": None}, "name is None"),
        ({"name": "a b"}, "'a b'"),
        ({"name": "x" * 129}, "129 bytes"),
        ({"address": 7}, "address is 7"),
        ({"address": "h\n:1"}, "address"),
        ({"capacity_bytes": -1}, "capacity_bytes is -1"),
        ({"capacity_bytes": True}, "capacity_bytes is True"),
        ({"incarnation": 2**64}, "incarnation is"),
        ({"incarnation": 1.5}, "incarnation is 1.5"),
        ({"state": "asleep"}, "'asleep'"),
        ({"state": ["up"]}, r"\['up'\]"),
    ],
)
def test_a_node_out_of_bounds_is_refused(change: dict[str, object], named: str) -> None:
    text = json.dumps({"name": "a", "address": "h:1"} | change)
    with pytest.raises(ConfigError, match=named):
        decode_node(text)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no JSON"),
        ("[]", "object"),
        (b"\xff\xfe{", "no JSON"),
        ("[" * 4000, "no JSON"),
        ('{"nodes": [], "version": -1}', "version is -1"),
        ('{"nodes": {}, "version": 1}', "a list"),
        ('{"nodes": [3], "version": 1}', "object with name"),
        (" " * 2_000_000, "at most"),
        (
            '{"version":1,"nodes":[{"name":"a","address":"x:1"},{"name":"a","address":"y:1"}]}',
            "two nodes are named 'a'",
        ),
    ],
    ids=range(9),
)
def test_a_view_that_is_none_is_refused(text: str | bytes, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        decode_view(text)


def test_a_cluster_has_an_end() -> None:
    nodes = [Node(f"n{index}", "h:1") for index in range(NODES_MAX + 1)]
    assert len(View.of(nodes[:-1]).nodes) == NODES_MAX
    with pytest.raises(ConfigError, match="1025 nodes"):
        View.of(nodes)
    assert decode_view(encode_view(View.of(nodes[:-1]))) == View.of(nodes[:-1])
