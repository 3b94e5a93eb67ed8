"""Views: nodes from a URL, notes as values, and both merged into a picture."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinistore.cluster.nodes import Node, View
from infinistore.cluster.view import (
    NOTE_BYTES_MAX,
    NOTE_PAGE_BYTES,
    SOURCES,
    Note,
    decode_note,
    encode_note,
    merge,
    note_bytes,
)
from infinistore.config import ClientConfig
from infinistore.errors import ConfigError, UsageError

GROUPS = st.integers(0, 2**64 - 1)
NAMES = st.lists(st.sampled_from(["a", "b", "c:1"]), max_size=3).map(tuple)
NOTES = st.builds(
    Note,
    st.sampled_from(["a", "b"]),
    st.integers(0, 2**64 - 1),
    st.sampled_from(["up", "joining", "leaving"]),
    st.dictionaries(GROUPS, NAMES, max_size=400),
    st.floats(0, 1e12),
    st.integers(0, 2**62),
    st.dictionaries(GROUPS, st.integers(0, 10**12).map(float), max_size=100),
    st.integers(0, 2**62),
)


def test_a_list_of_addresses_is_a_view() -> None:
    source = SOURCES["infinistore"]("infinistore://b:1, a,[::1]:7/", ClientConfig())
    names = ["[::1]:7", "a:22345", "b:1"]
    assert [node.name for node in source.current().nodes] == names
    assert [node.address for node in source.current().nodes] == names
    source.close()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("infinistore://a:1,", "names no host"),
        ("infinistore://a:1,b:x", "port"),
        ("infinistore://a:1,a:1", "two nodes are named 'a:1'"),
        ("infinistore://a,a:22345", "two nodes"),
        ("infinistore://" + ",".join(f"h{n}" for n in range(1025)), "at most 1024"),
    ],
    ids=range(5),
)
def test_a_list_that_is_none_is_refused(url: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        SOURCES["infinistore"](url, ClientConfig())


@given(NOTES)
def test_a_note_is_read_as_it_was_written(note: Note) -> None:
    value = encode_note(note)
    assert len(value) % NOTE_PAGE_BYTES == 0
    assert note_bytes(value[:NOTE_PAGE_BYTES]) == len(value)
    assert decode_note(value) == note


def test_a_note_that_is_too_large_is_not_written() -> None:
    copies = {group: ("some-node-with-a-name",) for group in range(30_000)}
    with pytest.raises(ConfigError, match=f"at most {NOTE_BYTES_MAX}"):
        encode_note(Note("a", copies=copies))


@given(st.binary(max_size=100))
def test_noise_is_no_note(noise: bytes) -> None:
    for value in (noise, b"00004096\n" + noise.ljust(4087)):
        with pytest.raises(ConfigError):
            decode_note(value)


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"incarnation": -1},
        {"state": "gone"},
        {"copies": []},
        {"copies": {"1": ["a"]}},
        {"copies": {"g" * 16: ["a"]}},
        {"copies": {"0" * 16: "a"}},
        {"copies": {"0" * 16: [1]}},
        {"copies": {"0" * 16: ["x" * 129]}},
        {"bytes_per_s": "fast"},
        {"bytes_per_s": float("nan")},
        {"at_version": -1},
    ],
    ids=str,
)
def test_a_note_out_of_bounds_is_refused(change: dict[str, object]) -> None:
    text = json.dumps({"name": "a"} | change).encode()
    value = (b"00004096\n" + text).ljust(4096)
    with pytest.raises(ConfigError):
        decode_note(value)
    assert decode_note((b"00004096\n" + b'{"name": "a", "new": 1}').ljust(4096)) == Note("a")


def test_a_picture_is_the_view_with_what_the_notes_add() -> None:
    view = View.of([Node("a", "x:1", 7, 10), Node("b", "x:2", 7, 20), Node("c", "x:3")], 5)
    notes = {
        "a": Note("a", 10, "leaving", {1: ("b", "gone"), 2: ("c",)}, 100.0),
        "b": Note("b", 19, "leaving", {1: ("c",)}, 200.0),  # of an earlier start
        "c": Note("c", 3, "up", {2: ("b", "c")}, 300.0),
        "d": Note("d", 1, "up", {3: ("a",)}),
    }
    picture = merge(view, notes)
    assert [node.state for node in picture.view.nodes] == ["leaving", "up", "up"]
    assert picture.view.nodes[0].capacity_bytes == 7
    assert picture.view.version == 5
    # Copies outlive their owner: its restart, and its end.
    assert picture.copies == {1: ("b", "c"), 2: ("c", "b"), 3: ("a",)}
    assert picture.bytes_per_s == {"a": 100.0, "c": 300.0}
    assert merge(view, {}).copies == {}


def test_copies_whose_owner_is_gone_are_known_as_such() -> None:
    view = View.of([Node("a", "h:1", incarnation=2), Node("b", "h:2", incarnation=5)])
    new = Note("a", 2, "up", {1: ("b",)})
    before = Note("a", 1, "up", {2: ("b",)})
    assert merge(view, {"a": new}).orphaned == set()
    assert merge(view, {"a": before}).orphaned == {2}  # its next incarnation has not spoken yet
    gone = merge(view, {"a": new, "c": Note("c", 1, "up", {3: ("a",)})}, [before])
    assert gone.orphaned == {2, 3}
    assert gone.copies == {1: ("b",), 2: ("b",), 3: ("a",)}
    listed = View.of([Node("a", "h:1"), Node("b", "h:2")])  # a list knows no incarnations
    assert merge(listed, {"a": new}).orphaned == set()
