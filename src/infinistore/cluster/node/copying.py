"""Copies of a node's hot groups on other nodes: made, kept whole and withdrawn, as was decided.

A copy is told of once it is there, and withdrawn in this order: it is told of no more; then, when
readers know, its values are deleted, those that this node sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from infinistore.cluster.heat import HotGroup
from infinistore.cluster.moves import copies_to_drop, copies_to_make
from infinistore.cluster.node.peers import Peers
from infinistore.cluster.node.rate import Rate
from infinistore.cluster.node.settling import Row, groups_of
from infinistore.cluster.node.transfer import Moving, Source, Stored, push
from infinistore.cluster.nodes import Node
from infinistore.cluster.spreading import Copies
from infinistore.cluster.view import NOTE_NAMESPACE
from infinistore.errors import InfiniStoreError

logger = logging.getLogger(__name__)

# Readers hear of a note within a second or two.
WITHDRAW_S = 5.0
# A copy is looked after so often: what was evicted there, or became hot here, is sent.
CARE_S = 2.0
# For so long a withdrawn copy's deletion is tried again where its node does not answer.
DELETE_MAX_S = 60.0
UNKNOWN = 0  # the incarnation of a node that does not answer at the moment
_SPACE = NOTE_NAMESPACE.encode()

Place = tuple[int, str]  # a group, and the node with a copy


@dataclass(slots=True)
class _Copy:
    incarnation: int  # of the node: another one has lost it
    cared_at_s: float
    sent: set[tuple[bytes, bytes]] = field(default_factory=set)  # namespaces and keys


class HotRows:
    """A server's hottest keys by their groups."""

    def __init__(self, rows: Sequence[Row]) -> None:
        kept = [row for row in rows if row[0] != _SPACE]
        self.rows: dict[int, list[Row]] = {}
        if kept:
            for group, row in zip(groups_of([r[1] for r in kept]).tolist(), kept, strict=True):
                self.rows.setdefault(group, []).append(row)
        self.groups = {
            group: HotGroup(sum(row[3] for row in rows), sum(row[2] for row in rows))
            for group, rows in self.rows.items()
        }


class Copier:
    """For one node, in one event loop."""

    def __init__(
        self,
        moving: Moving,
        peers: Peers,
        own_address: str,
        rate: Rate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._moving = moving
        self._peers = peers
        self._own_address = own_address
        self._rate = rate
        self._clock = clock
        self._copies: dict[Place, _Copy] = {}
        self._withdrawn: dict[Place, tuple[float, _Copy]] = {}
        self.wanted: Copies = {}
        self.made_total = self.withdrawn_total = 0

    def made(self) -> dict[int, tuple[str, ...]]:
        """What is there, for the note: the group's nodes in the order of their names."""
        found: dict[int, tuple[str, ...]] = {}
        for group, name in sorted(self._copies):
            found[group] = (*found.get(group, ()), name)
        return found

    def forget_lost(self, nodes: Mapping[str, int]) -> None:
        """Drops copies on nodes that are not there, or not those: by names and incarnations."""
        for place, copy in list(self._copies.items()):
            incarnation = nodes.get(place[1], -1)
            if incarnation not in (UNKNOWN, copy.incarnation):
                del self._copies[place]

    async def step(self, hot: HotRows, nodes: Mapping[str, Node]) -> None:
        """Makes, cares for and withdraws what is due. What fails is tried again in a later step."""
        for place in copies_to_drop(self.wanted, self.made()):
            self._withdrawn[place] = (self._clock() + WITHDRAW_S, self._copies.pop(place))
            self.withdrawn_total += 1
        await self._delete_withdrawn(nodes)
        rates = {group: each.rate for group, each in hot.groups.items()}
        due = copies_to_make(self.wanted, self.made(), rates)
        due += [
            place
            for place, copy in self._copies.items()
            if self._clock() - copy.cared_at_s > CARE_S
        ]
        for place in due:
            group, name = place
            if name in nodes and group in hot.rows and name in self.wanted.get(group, ()):
                try:
                    await self._make(place, nodes[name], hot.rows[group])
                except InfiniStoreError as error:
                    logger.debug("no copy of group %016x on %s: %s", group, name, error)

    async def _make(self, place: Place, node: Node, rows: Sequence[Row]) -> None:
        _, before = self._withdrawn.pop(place, (0.0, _Copy(node.incarnation, 0.0)))
        copy = self._copies.get(place, before)
        is_whole = True
        for space in dict.fromkeys(row[0] for row in rows):
            target = await self._peers.client(node.address, space.decode())
            source = Source(
                await self._peers.client(self._own_address, space.decode()),
                self._moving,
                space.decode(),
            )
            values = [Stored(row[1], row[2]) for row in rows if row[0] == space]
            moved = await push(source, target, values, self._rate)
            copy.sent |= {(space, key) for key in moved.sent}
            is_whole = is_whole and not moved.refused
        copy.cared_at_s = self._clock()
        if is_whole and place not in self._copies:
            self._copies[place] = copy
            self.made_total += 1

    async def _delete_withdrawn(self, nodes: Mapping[str, Node]) -> None:
        for place, (at_s, copy) in list(self._withdrawn.items()):
            late_s = self._clock() - at_s
            if late_s < 0:
                continue
            node = nodes.get(place[1])
            if node is not None and node.incarnation != copy.incarnation:
                del self._withdrawn[place]  # it is gone with that node
            elif late_s > DELETE_MAX_S or (node and await self._delete(node, copy)):
                self._withdrawn.pop(place, None)  # what stays is evicted there in time

    async def _delete(self, node: Node, copy: _Copy) -> bool:
        """Deletes what was sent; whether all of it is gone."""
        for space in {space for space, _ in copy.sent}:
            keys = [key for held, key in copy.sent if held == space]
            try:
                target = await self._peers.client(node.address, space.decode())
                await target.delete(keys)
            except InfiniStoreError as error:
                logger.debug("a copy on %s stays: %s", node.name, error)
                return False
        return True
