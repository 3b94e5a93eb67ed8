"""What a node does in its cluster, as tasks of one event loop.

It registers, hears of the others and tells of itself, pushes what others own, and makes copies of
what is hot.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from infinistore.cluster.heat import HeatMap, HotGroup, noted
from infinistore.cluster.members.etcd import etcd_registry
from infinistore.cluster.members.membership import Membership, beat_s
from infinistore.cluster.members.registry import OpenRegistry
from infinistore.cluster.node.arrivals import Arrivals
from infinistore.cluster.node.board import is_told_to_drain, order_drain, publish, read_note
from infinistore.cluster.node.copying import UNKNOWN, Copier, HotRows
from infinistore.cluster.node.peers import CLIENTS_MAX, Peers
from infinistore.cluster.node.plan import ClusterPlan
from infinistore.cluster.node.rate import Meter, Rate
from infinistore.cluster.node.settling import Keys, Settler, Walk, owners
from infinistore.cluster.nodes import Node, State, View
from infinistore.cluster.placement import Placement, group_id
from infinistore.cluster.spreading import SpreadLimits, spread
from infinistore.cluster.view import NOTE_NAMESPACE, Note, merge
from infinistore.config import ServerConfig
from infinistore.errors import ConfigError, InfiniStoreError, UsageError

logger = logging.getLogger(__name__)

ROUND_S = 0.5
HOT_KEYS_MAX = 4096
# A view has to last so long before anything moves: a node that comes and goes costs nothing.
SETTLE_S = 1.0
JOIN_MAX_S = 600.0  # then a node is up, whoever has not pushed its share
_RETRY_S = 3.0
_UNTOLD_ROUNDS_MAX = 4
_DRAIN_WALKS = 2  # clients that knew of it late may have written behind the first


def digest(view: View, notes: Mapping[str, Note]) -> int:
    """Equal on two nodes if they see the same nodes, incarnations, and who is leaving."""
    seen = []
    for node in view.nodes:
        note = notes.get(node.name)
        incarnation = node.incarnation or (note.incarnation if note else 0)
        is_leaving = "leaving" in (node.state, note.state if note else "")
        seen.append((node.name, incarnation, is_leaving))
    return group_id(repr(seen).encode()) >> 1


def has_joined(own: str, at: int, notes: Mapping[str, Note]) -> bool:
    """Whether all other nodes have pushed, for this view, what belongs elsewhere."""
    return all(note.at_version == at for name, note in notes.items() if name != own)


def stale(held: Iterable[str], replacing: frozenset[str]) -> list[str]:
    """Of a server's namespaces those in which values are replaced, by the names clients say.

    A tenant's are below its own name, which it does not know: TENANT/NAME for what it calls NAME.
    """
    return sorted(
        space for space in held if any(f"/{space}".endswith(f"/{name}") for name in replacing)
    )


class NodeServer(Keys, Protocol):
    """Of the native server: what it holds, and its counters."""

    def namespaces(self) -> list[dict[str, Any]]: ...
    def snapshot(self) -> Mapping[str, int]: ...
    def purge(self, namespace: str | None, below: bool = False, /) -> int: ...


class Duties:
    """Made in any thread, run in one loop. What is public may be read in any thread."""

    def __init__(
        self,
        plan: ClusterPlan,
        config: ServerConfig,
        node: Node,
        own_address: str,
        token: str,
        server: NodeServer,
        on_drained: Callable[[], object],
    ) -> None:
        self.node = node
        self.view = View.of(Node(address, address) for address in plan.listed)
        self.notes: dict[str, Note] = {}
        self.rate = Rate(config.copy_rate_bytes)
        self.walk = Walk()  # the last one
        self.restless: frozenset[str] = frozenset()  # nodes that nothing is moved to
        self._ttl_s = config.node_ttl_s
        self._own_address = own_address
        self._on_drained = on_drained
        self._peers = Peers(token, is_secure=plan.is_secure)
        self._server = server
        self._settler = Settler(server, self._peers, own_address, self.rate)
        self.copier = Copier(server, self._peers, own_address, self.rate)
        self._limits = SpreadLimits(copies_max=config.copies_max)
        self._copies_share = config.copies_share
        self._own_reads = Meter(config.heat_half_life_s)
        self._arrivals = Arrivals()
        self._hot = HotRows(())
        self._nodes: dict[str, Node] = {}  # the others that answer
        self._load, self._room = 0.0, 0
        self._served: Mapping[int, float] = {}
        self._settled_at = 0
        self._published: Note | None = None
        self._rounds_untold = 0
        self._failing: set[str] = set()
        self._began_s = 0.0
        # Raises here, not in the loop, if the package is missing.
        self._open: OpenRegistry | None = (
            None if plan.etcd is None else etcd_registry(plan.etcd, beat_s(self._ttl_s))
        )
        self.membership: Membership | None = None

    @property
    def settled_keys(self) -> int:
        """Values that it sent to their owners."""
        return self._settler.sent_keys

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; then it leaves the cluster."""
        works: list[asyncio.Future[Any]]
        works = [
            asyncio.ensure_future(work) for work in (self._rounds(), self._settle(), self._copy())
        ]
        if self._open is not None:
            self.membership = Membership(
                self._open, self._ttl_s, self._take_view, self.node, on_return=self._drop_replaced
            )
            works.append(asyncio.ensure_future(self.membership.run()))
        works.append(asyncio.ensure_future(stop.wait()))
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            for work in works:
                if work.done():
                    work.result()
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            if self.membership is not None:
                await self.membership.leave()
            await self._peers.close()

    async def drain(self, name: str) -> None:
        """Has a node move everything to the others and stop. Raises `InfiniStoreError`."""
        node = self.view.find(name)
        if node is None:
            known = ", ".join(each.name for each in self.view.nodes)
            raise UsageError(f"no node is named {name!r}; there are: {known}")
        if len(owners(self.view.nodes)) < 2:
            raise UsageError("there is no other node to move to; stop the server instead")
        address = self._own_address if name == self.node.name else node.address
        await order_drain(await self._peers.client(address, NOTE_NAMESPACE))

    async def _obey(self) -> None:
        own = await self._peers.client(self._own_address, NOTE_NAMESPACE)
        if self.node.state != "leaving" and await is_told_to_drain(own):
            self._become("leaving")

    def _become(self, state: State) -> None:
        logger.info("this node is %s", state)
        self.node = replace(self.node, state=state)
        if self.membership is not None:
            self.membership.change(self.node)

    async def _drop_replaced(self, namespaces: frozenset[str]) -> None:
        """The others went on without this node: what was replaced there meanwhile is old here."""
        held = [bytes(each["namespace"]).decode() for each in self._server.namespaces()]
        for namespace in stale(held, namespaces):
            dropped = await asyncio.to_thread(self._server.purge, namespace)
            if dropped:
                logger.warning("%d values of %r may be old and are dropped", dropped, namespace)

    def _take_view(self, view: View) -> None:
        before, after = ({node.name for node in each.nodes} for each in (self.view, view))
        for name in sorted(after - before):
            logger.info("node %s is there", name)
        for name in sorted(before - after):
            logger.warning("node %s is gone", name)
            self.notes.pop(name, None)
        self._arrivals.see(view.nodes)
        self._peers.clients_max = CLIENTS_MAX + len(view.nodes)  # each one's note is read for ever
        self.view = view

    # ---- rounds: hear, decide, tell ----

    async def _rounds(self) -> None:
        self._began_s = time.monotonic()
        while True:
            with self._logged("a round"):
                await self._round()
            await asyncio.sleep(ROUND_S)

    async def _round(self) -> None:
        await self._hear()
        self._watch_restless()
        await self._obey()
        if self.node.state == "joining" and self._has_joined():
            self._become("up")
        self._decide()
        await self._tell()

    def _watch_restless(self) -> None:
        self._arrivals.see(
            replace(node, incarnation=node.incarnation or note.incarnation) if note else node
            for node in self.view.nodes
            for note in [self.notes.get(node.name)]
        )
        before, self.restless = self.restless, self._arrivals.restless()
        for name in sorted(self.restless - before):
            logger.warning("node %s comes too often: nothing is moved to it for a while", name)

    def _decide(self) -> None:
        """Which copies this node's own groups shall have, from all notes."""
        snapshot = self._server.snapshot()
        served = snapshot.get("served_bytes_per_s", 0) - self._own_reads.rate(self.rate.spent_bytes)
        self._load = max(0.0, served)
        self._hot = hot = HotRows(self._server.hottest(HOT_KEYS_MAX))
        believed = merge(self.view, self.notes).view
        self._nodes = {
            node.name: replace(node, incarnation=self.notes[node.name].incarnation)
            for node in believed.nodes
            if node.name in self.notes and node.name != self.node.name
        }
        self.copier.forget_lost(
            {
                node.name: note.incarnation if (note := self.notes.get(node.name)) else UNKNOWN
                for node in believed.nodes
            }
        )
        owned = self._owned(hot, believed)
        heat = HeatMap(note for note in self.notes.values() if note.name not in self.restless)
        given = self.copier.wanted
        self.copier.wanted = spread(self.node.name, owned, given, heat, self._limits)
        held = [
            group
            for note in self.notes.values()
            for group, names in note.copies.items()
            if self.node.name in names
        ]
        self._served = noted(hot.groups, {*held, *self.copier.made()})
        held_bytes = sum(hot.groups[group].size for group in held if group in hot.groups)
        capacity = snapshot.get("capacity_bytes", 0)
        self._room = max(0, int(self._copies_share * capacity) - held_bytes)

    def _owned(self, hot: HotRows, believed: View) -> dict[int, HotGroup]:
        if self.node.state == "leaving" or not hot.groups:
            return {}
        placement = Placement(owners(believed.nodes))
        ids = np.array(list(hot.groups), dtype=np.uint64)
        return {
            int(group): hot.groups[int(group)]
            for group, index in zip(ids, placement.first(ids)[:, 0], strict=True)
            if placement.nodes[index].name == self.node.name
        }

    async def _copy(self) -> None:
        while True:
            with self._logged("copying"):
                await self.copier.step(self._hot, self._nodes)
            await asyncio.sleep(ROUND_S)

    @contextlib.contextmanager
    def _logged(self, what: str) -> Iterator[None]:
        """A failure is logged, once in a row, and the next time may do: the node stays a node."""
        try:
            yield
            self._failing.discard(what)
        except Exception as error:
            if what not in self._failing:
                is_known = isinstance(error, InfiniStoreError)
                logger.warning("%s of the cluster failed: %s", what, error, exc_info=not is_known)
            self._failing.add(what)

    def _has_joined(self) -> bool:
        if time.monotonic() - self._began_s > JOIN_MAX_S:
            return True
        is_known = self.view.find(self.node.name) is not None
        return is_known and has_joined(self.node.name, self._digest(), self.notes)

    def _digest(self) -> int:
        return digest(self.view, self.notes)

    async def _hear(self) -> None:
        """Reads the others' notes, all at once; of who does not answer nothing is known."""
        others = [node for node in self.view.nodes if node.name != self.node.name]
        heard = await asyncio.gather(*(self._note_of(node) for node in others))
        for node, note in zip(others, heard, strict=True):
            if note is None:
                self.notes.pop(node.name, None)
            else:
                self.notes[node.name] = note

    async def _note_of(self, node: Node) -> Note | None:
        try:
            return await read_note(await self._peers.client(node.address, NOTE_NAMESPACE))
        except (InfiniStoreError, ConfigError) as error:
            logger.debug("node %s does not answer: %s", node.name, error)
            return None

    async def _tell(self) -> None:
        node = self.node
        note = Note(
            node.name,
            node.incarnation,
            node.state,
            self.copier.made(),
            self._load,
            self._settled_at,
            self._served,
            self._room,
        )
        self.notes[node.name] = note
        self._rounds_untold += 1
        # At times anyway: it may have been evicted, or purged.
        if note != self._published or self._rounds_untold >= _UNTOLD_ROUNDS_MAX:
            own = await self._peers.client(self._own_address, NOTE_NAMESPACE)
            await publish(own, note)
            self._published, self._rounds_untold = note, 0

    # ---- settling: what others own goes to them ----

    async def _settle(self) -> None:
        walks = 0
        walked: tuple[int, frozenset[str]] | None = None
        while True:
            at, is_leaving = self._digest(), self.node.state == "leaving"
            left_out: frozenset[str] = frozenset() if is_leaving else self.restless
            is_known = self.view.find(self.node.name) is not None
            if not is_known or ((at, left_out) == walked and not is_leaving):
                await asyncio.sleep(ROUND_S)
                continue
            await asyncio.sleep(SETTLE_S)
            if at != self._digest():
                continue
            with self._logged("a walk"):
                walk = await self._walk(left_out)
                if walk.is_whole:
                    walked = (at, left_out)
                    self._settled_at = self._settled_at if left_out else at
                    walks += is_leaving
                else:
                    await asyncio.sleep(_RETRY_S)
            if walks >= _DRAIN_WALKS:
                logger.info("drained")
                self._on_drained()
                return

    async def _walk(self, left_out: frozenset[str]) -> Walk:
        believed = merge(self.view, self.notes).view
        self.walk = walk = await self._settler.walk(self.node.name, believed, left_out)
        if walk.sent_keys:
            logger.info("%d values moved to the nodes that own them", walk.sent_keys)
        if not walk.is_whole:
            logger.warning("not all values could be moved: %s", "; ".join(walk.failures))
        return walk
