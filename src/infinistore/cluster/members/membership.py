"""Who is in the cluster: keeps one node registered, and knows the others.

While the registry is away all that was known stays, and nothing new joins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from random import Random

from infinistore.cluster.members.registry import Change, OpenRegistry, Registry, RegistryError
from infinistore.cluster.nodes import NODES_MAX, Node, View, decode_node, encode_node
from infinistore.errors import ConfigError

logger = logging.getLogger(__name__)

BEATS = 3  # in the time that a node may be silent
_FIRST_DELAY_S = 0.05

OnView = Callable[[View], None]
# Told, before a node is registered anew, of the namespaces in which values are replaced.
OnReturn = Callable[[frozenset[str]], Awaitable[None]]


def beat_s(ttl_s: float) -> float:
    """Time between two heartbeats, and the longest wait for the registry's answer to one."""
    return ttl_s / BEATS


def delays(ttl_s: float, random: Random) -> Iterator[float]:
    """How long to wait before each next try: twice as long each, up to a heartbeat, scattered."""
    delay = _FIRST_DELAY_S
    while True:
        yield delay * random.uniform(0.5, 1)
        delay = min(2 * delay, beat_s(ttl_s))


def decoded(values: Mapping[str, bytes]) -> dict[str, Node]:
    """The nodes of a listing. What is no node, or says another name, is left out and logged."""
    nodes = {}
    for name, value in sorted(values.items())[:NODES_MAX]:
        try:
            node = decode_node(value)
        except ConfigError as error:
            logger.warning("the registry's %r is no node: %s", name, error)
            continue
        if node.name == name:
            nodes[name] = node
    return nodes


class Membership:
    """One process's part in a registry. Everything runs in the loop that `run` was started in.

    Without a node it only looks. `on_view` is called with each new view.
    """

    def __init__(
        self,
        open_registry: OpenRegistry,
        ttl_s: float,
        on_view: OnView,
        node: Node | None = None,
        random: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_return: OnReturn | None = None,
    ) -> None:
        self._on_return = on_return
        self._was_lost = False  # others may have gone on without this node
        self._attempt = 0
        self._open = open_registry
        self._ttl_s = ttl_s
        self._on_view = on_view
        self._node = node
        self._random = random or Random()
        self._clock = clock
        self._lease = 0
        self._registered: Node | None = None  # as the registry has it
        self._changed = asyncio.Event()
        self._nodes: dict[str, Node] = {}
        # Known before the registry was away and not in it now: they may not be back yet.
        self._awaited: dict[str, float] = {}
        self._usurper: Node | None = None
        self._error = ""
        self.view = View(())
        self.replacing: frozenset[str] = frozenset()  # as somebody told; only of one without a node
        self.is_connected = False
        self.sessions = 0  # connections that worked, so far

    @property
    def problem(self) -> str:
        """What an operator should know; empty: all is well."""
        if self._usurper is not None:
            return (
                f"another server has registered as {self._usurper.name!r}, at "
                f"{self._usurper.address}; name each node apart (node_name)"
            )
        return self._error

    @property
    def is_settled(self) -> bool:
        """Whether the registry has this node as it is now."""
        return self.is_connected and self._registered == self._node

    def change(self, node: Node) -> None:
        """Registers the node with other values from now on."""
        if self._usurper is None:
            self._node = node
            self._changed.set()

    async def mark_replacing(self, namespace: str) -> None:
        """Leaves word with the registry. Raises `RegistryError`."""
        if not self.is_connected:
            raise RegistryError(
                f"the registry does not answer: a first replacement in the namespace {namespace!r} "
                "has to be told to it; try again later"
            )
        registry = self._open(self._attempt)  # the member of etcd that answered last
        try:
            await registry.mark_replacing(namespace)
        finally:
            await registry.close()

    async def run(self) -> None:
        """Runs until cancelled; a registry that does not answer is tried again for ever."""
        waits = delays(self._ttl_s, self._random)
        while True:
            registry = self._open(self._attempt)
            try:
                await self._session(registry)
            except RegistryError as error:
                if self.is_connected or not self._attempt:
                    logger.warning("%s; what is known stays, and it is tried again", error)
                if self.is_connected:
                    waits = delays(self._ttl_s, self._random)
                self._error = str(error)
            finally:
                self.is_connected = False
                await registry.close()
            self._attempt += 1
            await asyncio.sleep(next(waits))

    async def leave(self) -> None:
        """Takes the node out of the registry; if that fails, its lease ends by itself."""
        lease, self._lease, self._node, self._registered = self._lease, 0, None, None
        if lease:
            registry = self._open(self._attempt)
            with contextlib.suppress(RegistryError):
                await registry.revoke(lease)
            await registry.close()

    async def _session(self, registry: Registry) -> None:
        """One connection, until it fails."""
        listing = await registry.listing()
        nodes = decoded(listing.values)
        if self._node is not None and self._registered is not None:
            self._watch_name(nodes.get(self._node.name))
        await self._beat(registry)
        self._begin(nodes)
        self.sessions += 1
        self.is_connected, self._error = True, ""
        logger.info("the registry answers; %d nodes are known", len(self._nodes))
        works = [
            asyncio.ensure_future(self._follow(registry, listing.revision)),
            asyncio.ensure_future(self._keep(registry)),
        ]
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            for work in works:
                if work.done():
                    work.result()
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def _keep(self, registry: Registry) -> None:
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), beat_s(self._ttl_s))
            self._changed.clear()
            await self._beat(registry)
            self._give_up_awaited()

    async def _beat(self, registry: Registry) -> None:
        """Keeps the node registered as it is now; one without a node asks who replaces."""
        node = self._node
        if node is None:
            self.replacing = await registry.replacing()  # whose answer is one to a heartbeat, too
            return
        if not self._lease or not await registry.keep_alive(self._lease):
            self._was_lost |= bool(self._lease)
            self._registered = None
            self._lease = await registry.grant(math.ceil(self._ttl_s))
        if self._was_lost:
            await self._return(registry)
        if self._registered != node:
            await registry.put(node.name, encode_node(node).encode(), self._lease)
            self._registered = node

    async def _return(self, registry: Registry) -> None:
        self._was_lost = False  # it may be lost again meanwhile
        try:
            if self._on_return is not None:
                await self._on_return(await registry.replacing())
        except BaseException:
            self._was_lost = True
            raise

    async def _follow(self, registry: Registry, revision: int) -> None:
        async for change in registry.changes(revision):
            if self._node is not None and change.name == self._node.name:
                self._own_changed(change)
            self._awaited.pop(change.name, None)
            if change.value is None:
                self._nodes.pop(change.name, None)
            else:
                self._nodes |= decoded({change.name: change.value})
            self._show()
        raise RegistryError("etcd: the watch ended")

    def _own_changed(self, change: Change) -> None:
        if change.value is None:  # its lease was ended by somebody else
            self._registered = None
            self._was_lost = True
            self._changed.set()
        else:
            self._watch_name(decoded({change.name: change.value}).get(change.name))

    def _watch_name(self, found: Node | None) -> None:
        """Of two servers with one name the one that started last has it; the other steps back."""
        node = self._node
        if node is None or found is None or found.incarnation == node.incarnation:
            return
        self._usurper, self._node, self._registered, self._lease = found, None, None, 0
        logger.error("%s", self.problem)

    def _begin(self, nodes: dict[str, Node]) -> None:
        until = self._clock() + self._ttl_s
        gone = {name: node for name, node in self._nodes.items() if name not in nodes}
        self._awaited = {name: self._awaited.get(name, until) for name in gone}
        self._nodes = nodes | gone
        self._show()

    def _give_up_awaited(self) -> None:
        now = self._clock()
        late = [name for name, until in self._awaited.items() if until <= now]
        for name in late:
            del self._awaited[name], self._nodes[name]
        if late:
            self._show()

    def _show(self) -> None:
        if self._node is not None:
            self._nodes[self._node.name] = self._node
        nodes = View.of(self._nodes.values()).nodes
        if nodes != self.view.nodes:
            self.view = View(nodes, self.view.version + 1)
            self._on_view(self.view)
