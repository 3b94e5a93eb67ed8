"""Values find their way to their owners: after a join, a leave, a crash, and for a drain.

A node walks over its keys and pushes those that others own. What it pushed it keeps: nobody reads
it here any more, so it leaves first, and it may be a replica that a client wanted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from infinistore.client.arguments import keys_of
from infinistore.cluster.node.peers import Peers
from infinistore.cluster.node.rate import Rate
from infinistore.cluster.node.transfer import Moving, Source, Stored, push
from infinistore.cluster.nodes import Node, View
from infinistore.cluster.placement import Ids, Placement
from infinistore.cluster.view import NOTE_NAMESPACE
from infinistore.errors import InfiniStoreError

logger = logging.getLogger(__name__)

PAGE_KEYS = 1024
HOT_KEYS_MAX = 8192
_COLD_S = 600.0  # what is read less than once in so long, as far as heat can tell, is cold
ROOM_SHARE = 0.1  # what nobody reads is not pushed to a node that has less of its pool free


# Namespace, key, bytes of the value, bytes of it served a second lately.
Row = tuple[bytes, bytes, int, float]


Place = tuple[Node, bytes]  # a node and a namespace


class Keys(Moving, Protocol):
    """Of the native server: what it holds."""

    def hottest(self, count_max: int, /) -> list[Row]: ...
    def list_keys(self, cursor: int, count_max: int, /) -> tuple[int, list[Row]]: ...


@dataclass(slots=True)
class Walk:
    """What one walk did. It is whole if every value is where it belongs, or was left on purpose."""

    sent_keys: int = 0
    sent_bytes: int = 0
    left_keys: int = 0  # cold ones, for which their owners have no room
    failures: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not self.failures


def owners(nodes: Iterable[Node]) -> list[Node]:
    """Those that groups may belong to: the ones that stay."""
    known = list(nodes)
    return [node for node in known if node.state != "leaving"] or known


def misplaced(rows: Sequence[Row], placement: Placement, own: str) -> dict[Place, list[Row]]:
    """The rows that other nodes own, by node and namespace, in their order."""
    if not rows:
        return {}
    ids = groups_of([key for _, key, _, _ in rows])
    found: dict[Place, list[Row]] = {}
    for row, index in zip(rows, placement.first(ids)[:, 0], strict=True):
        owner = placement.nodes[index]
        if owner.name != own and row[0] != NOTE_NAMESPACE.encode():
            found.setdefault((owner, row[0]), []).append(row)
    return found


def is_hot(row: Row) -> bool:
    """Whether it was read lately: heat halves, and never ends."""
    return row[3] * _COLD_S >= row[2]


def groups_of(keys: list[bytes]) -> Ids:
    """The id of each key's group."""
    return np.frombuffer(keys_of(keys).groups(), dtype=np.uint64)


class Settler:
    """Walks for one node. One walk at a time."""

    def __init__(self, keys: Keys, peers: Peers, own_address: str, rate: Rate) -> None:
        self._keys = keys
        self._peers = peers
        self._own_address = own_address
        self._rate = rate
        self.sent_keys = 0

    async def walk(self, own: str, view: View, left_out: Collection[str] = ()) -> Walk:
        """Over all keys, the hottest first. What goes wrong is told in the walk.

        What belongs to nodes that are `left_out` stays where it is.
        """
        walk = Walk()
        placement = Placement(owners(view.nodes))
        lost = set(left_out)  # not asked, or not again, in this walk
        async for rows in self._pages():
            for (owner, space), found in misplaced(rows, placement, own).items():
                if owner.name in lost:
                    continue
                try:
                    await self._push(owner, space, found, walk)
                except InfiniStoreError as error:
                    lost.add(owner.name)
                    walk.failures.append(f"{owner.name}: {error}")
        return walk

    async def _pages(self) -> AsyncIterator[list[Row]]:
        yield self._keys.hottest(HOT_KEYS_MAX)
        cursor = 0
        while True:
            cursor, rows = self._keys.list_keys(cursor, PAGE_KEYS)
            yield rows
            if not cursor:
                return
            await asyncio.sleep(0)

    async def _push(self, owner: Node, space: bytes, rows: list[Row], walk: Walk) -> None:
        namespace = space.decode()
        target = await self._peers.client(owner.address, namespace)
        hot = [row for row in rows if is_hot(row)]
        cold = [row for row in rows if not is_hot(row)]
        if cold:
            stats = await target.stats()
            room = stats["free_bytes"] - ROOM_SHARE * stats["capacity_bytes"]
            fits = sum(row[2] for row in cold) <= room
            walk.left_keys += 0 if fits else len(cold)
            hot += cold if fits else []
        reader = await self._peers.client(self._own_address, namespace)
        source = Source(reader, self._keys, namespace)
        moved = await push(
            source, target, [Stored(key, size) for _, key, size, _ in hot], self._rate
        )
        walk.sent_keys += len(moved.sent)
        walk.sent_bytes += moved.sent_bytes
        self.sent_keys += len(moved.sent)
        if moved.refused:
            logger.debug("node %s took %d keys not", owner.name, moved.refused)
