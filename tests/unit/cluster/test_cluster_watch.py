"""What a client goes by when a node starts again: its new note, and the copies of its last life."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from infinistore.cluster import watch as watching
from infinistore.cluster.fleet import Fleet
from infinistore.cluster.nodes import Node, View
from infinistore.cluster.placement import group_id, order
from infinistore.cluster.view import Note, StaticSource, encode_note
from infinistore.cluster.watch import Watch
from infinistore.errors import Code

NODES = [Node(name, name) for name in ("a:1", "b:1", "c:1")]
GROUP = group_id(b"hot")
OWNER, HOLDER, _ = (node.name for node in order(GROUP, NODES))
IDS = np.array([GROUP], dtype=np.uint64)


class FakeServer:
    """One node's server: its native client, and the client of its note."""

    def __init__(self) -> None:
        self.note: Note | None = None

    def server(self) -> dict[str, Any]:
        return {"incarnation": 1}

    def read_cache(self, page: bytearray, *_: Any, **__: Any) -> FakeServer:
        if self.note is not None:
            value = encode_note(self.note)
            page[: len(value)] = value
        return self

    def wait(self, timeout_s: float) -> list[Code]:
        return [Code.MISSING if self.note is None else Code.OK]


@pytest.mark.parametrize("next_note", [None, Note(OWNER, incarnation=2)], ids=["silent", "says"])
def test_copies_of_a_node_that_starts_again_are_read_first(
    next_note: Note | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = {node.name: FakeServer() for node in NODES}

    def find(address: str) -> Any:
        return servers[address.removeprefix("infinistore://")]

    fleet = Fleet()
    watch = Watch(StaticSource(View.of(NODES)), fleet, find, find, scheme="infinistore://")
    watch.connect()
    numbers = {member.node.name: member.number for member in fleet.members()}

    def asked() -> list[int]:
        for member in fleet.members():
            member.notes_at_s = 0.0
        watch.look()
        found: list[int] = fleet.routes().readers(IDS)[0].tolist()
        return found

    servers[OWNER].note = Note(OWNER, incarnation=1, copies={GROUP: (HOLDER,)})
    assert asked()[0] == numbers[OWNER]
    servers[OWNER].note = next_note
    assert asked() == [numbers[HOLDER], numbers[OWNER]]
    assert asked() == [numbers[HOLDER], numbers[OWNER]]
    monkeypatch.setattr(watching, "ORPHANED_S", -1.0)
    assert asked() == [numbers[OWNER]]
    servers[OWNER].note = Note(OWNER, incarnation=1, copies={GROUP: (HOLDER,)})
    monkeypatch.undo()
    assert asked()[0] == numbers[OWNER]
