"""Copies that are withdrawn: when they are deleted, and what if their node does not answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from infinistore.cluster.node import copying
from infinistore.cluster.node.copying import DELETE_MAX_S, WITHDRAW_S, Copier, HotRows
from infinistore.cluster.node.transfer import Moved, Stored
from infinistore.cluster.nodes import Node
from infinistore.errors import LinkError

ROWS = [(b"kv", b"{g}1", 10, 5.0), (b"kv", b"{g}2", 10, 5.0)]
HOT = HotRows(ROWS)
(GROUP,) = HOT.groups
NODE = Node("b", "h:2", incarnation=7)


class FakePeers:
    """Every client is itself; deletions fail while it is away."""

    def __init__(self) -> None:
        self.is_away = False
        self.deleted: list[bytes] = []

    async def client(self, address: str, namespace: str) -> FakePeers:
        return self

    async def delete(self, keys: Sequence[bytes]) -> int:
        if self.is_away:
            raise LinkError("away")
        self.deleted += keys
        return len(keys)


@pytest.fixture
def peers() -> FakePeers:
    return FakePeers()


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
async def copier(peers: FakePeers, now: list[float], monkeypatch: pytest.MonkeyPatch) -> Copier:
    """With one copy, of all keys of the group, which is no longer wanted."""

    async def push(source: Any, target: Any, values: Sequence[Stored], rate: Any) -> Moved:
        return Moved(sent=tuple(value.key for value in values))

    monkeypatch.setattr(copying, "push", push)
    unused: Any = None
    fake: Any = peers
    made = Copier(unused, fake, "h:1", unused, clock=lambda: now[0])
    made.wanted = {GROUP: ("b",)}
    await made.step(HOT, {"b": NODE})
    assert made.made() == {GROUP: ("b",)}
    made.wanted = {}
    await made.step(HOT, {"b": NODE})
    assert made.made() == {}
    return made


async def test_what_was_sent_is_deleted_once_readers_know(
    copier: Copier, peers: FakePeers, now: list[float]
) -> None:
    now[0] += WITHDRAW_S / 2
    await copier.step(HOT, {"b": NODE})
    assert peers.deleted == []
    now[0] += WITHDRAW_S
    await copier.step(HOT, {"b": NODE})
    assert sorted(peers.deleted) == [b"{g}1", b"{g}2"]
    await copier.step(HOT, {"b": NODE})
    assert len(peers.deleted) == 2


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_node_that_is_silent_meanwhile_loses_its_copy_later(
    copier: Copier, peers: FakePeers, now: list[float], is_known: bool
) -> None:
    peers.is_away = True
    now[0] += WITHDRAW_S
    await copier.step(HOT, {"b": NODE} if is_known else {})
    peers.is_away = False
    assert peers.deleted == []
    now[0] += DELETE_MAX_S - 1
    await copier.step(HOT, {"b": NODE})
    assert len(peers.deleted) == 2


@pytest.mark.parametrize(
    ("late_s", "incarnation"), [(DELETE_MAX_S + 1, 7), (0.0, 8)], ids=["too late", "another"]
)
async def test_what_is_not_there_any_more_is_left(
    copier: Copier, peers: FakePeers, now: list[float], late_s: float, incarnation: int
) -> None:
    now[0] += WITHDRAW_S + late_s
    await copier.step(HOT, {"b": Node("b", "h:2", incarnation=incarnation)})
    now[0] += 1
    await copier.step(HOT, {"b": NODE})
    assert peers.deleted == []
