"""A node's part in its cluster, on a thread of its own: it registers, tells of itself, hears of the
others, and carries out what was decided about copies, joins and drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from infinistore.cluster.board import publish, read_note
from infinistore.cluster.etcd import etcd_registry
from infinistore.cluster.membership import Membership, beat_s
from infinistore.cluster.nodes import Node, State, View
from infinistore.cluster.peers import Peers
from infinistore.cluster.plan import ClusterPlan
from infinistore.cluster.rate import Rate
from infinistore.cluster.view import NOTE_NAMESPACE, Note
from infinistore.config import ServerConfig
from infinistore.errors import ConfigError, InfiniStoreError

logger = logging.getLogger(__name__)

ROUND_S = 0.5
_STOP_TIMEOUT_S = 5.0
_UNTOLD_ROUNDS_MAX = 4


class Agent:
    """Made in any thread; `start` and `stop` once each. What it says of itself may be read anytime.

    `own_address` is where the agent itself reaches its server. `on_drained` is called in the
    agent's thread once everything has moved.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        config: ServerConfig,
        node: Node,
        own_address: str,
        token: str,
        on_drained: Callable[[], object] = lambda: None,
    ) -> None:
        self._plan = plan
        self._config = config
        self._node = node
        self._own_address = own_address
        self._token = token
        self._on_drained = on_drained
        # Raises here, not in a thread, if the package is missing.
        self._open = (
            etcd_registry(plan.etcd, beat_s(config.node_ttl_s)) if plan.etcd is not None else None
        )
        self._thread = threading.Thread(target=self._run, name="infinistore-cluster", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._has_begun = threading.Event()
        self._membership: Membership | None = None
        self._view = View.of(Node(address, address) for address in plan.listed)
        self._notes: dict[str, Note] = {}
        self._published: Note | None = None
        self._rate = Rate(config.copy_rate_bytes)
        self._rounds_untold = self._round_errors = 0

    # ---- for other threads ----

    def start(self) -> None:
        self._thread.start()
        self._has_begun.wait()

    def stop(self) -> None:
        """Leaves the cluster; returns once the thread has ended, or late."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_STOP_TIMEOUT_S)

    @property
    def is_connected(self) -> bool:
        """Whether the registry answers; a static list always does."""
        return self._membership is None or self._membership.is_connected

    @property
    def problem(self) -> str:
        return "" if self._membership is None else self._membership.problem

    def health(self) -> dict[str, Any]:
        """The part of /health."""
        return {
            "node": self._node.name,
            "state": self._node.state,
            "nodes": len(self._view.nodes),
            "connected": self.is_connected,
            "problem": self.problem,
        }

    def status(self) -> dict[str, Any]:
        """The answer of /cluster."""
        known = dict(self._notes)
        return self.health() | {
            "view": self._view.version,
            "nodes": [self._row(node, known.get(node.name)) for node in self._view.nodes],
            "background_bytes": self._rate.spent_bytes,
            "background_rate": self._config.copy_rate_bytes,
        }

    def metrics(self) -> dict[str, int]:
        """Gauges and totals of /metrics, by their names."""
        return {
            "cluster_nodes": len(self._view.nodes),
            "cluster_connected": int(self.is_connected),
            "cluster_background_bytes_total": self._rate.spent_bytes,
        }

    def _row(self, node: Node, note: Note | None) -> dict[str, Any]:
        row = {
            "name": node.name,
            "address": node.address,
            "state": node.state,
            "incarnation": node.incarnation,
            "capacity_bytes": node.capacity_bytes,
            "answers": note is not None,
        }
        if note is not None:
            row |= {
                "state": note.state,
                "incarnation": note.incarnation,
                "bytes_per_s": note.bytes_per_s,
                "copies": {f"{group:016x}": list(to) for group, to in note.copies.items()},
            }
        return row

    # ---- in its own thread ----

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception:  # the server serves on, alone
            logger.exception("the cluster's agent failed; this node takes no part any more")
        finally:
            self._has_begun.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._peers = Peers(self._token)
        if self._open is not None:
            self._membership = Membership(
                self._open, self._config.node_ttl_s, self._take_view, self._node
            )
        self._has_begun.set()
        works = [asyncio.ensure_future(self._rounds())]
        if self._membership is not None:
            works.append(asyncio.ensure_future(self._membership.run()))
        try:
            await self._stop.wait()
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            if self._membership is not None:
                await self._membership.leave()
            await self._peers.close()

    def _take_view(self, view: View) -> None:
        before = {node.name: node for node in self._view.nodes}
        for node in view.nodes:
            if before.get(node.name) is None:
                logger.info("node %s is there, at %s", node.name, node.address)
        for name in before.keys() - {node.name for node in view.nodes}:
            logger.warning("node %s is gone", name)
            self._notes.pop(name, None)
        self._view = view

    async def _rounds(self) -> None:
        while True:
            try:
                await self._round()
                self._round_errors = 0
            except InfiniStoreError as error:
                self._round_errors += 1
                if self._round_errors == 1:
                    logger.warning("the cluster's round failed: %s", error)
            await asyncio.sleep(ROUND_S)

    async def _round(self) -> None:
        await self._hear()
        if self._node.state == "joining":
            self._become("up")
        await self._tell()

    def _become(self, state: State) -> None:
        logger.info("this node is %s", state)
        self._node = replace(self._node, state=state)
        if self._membership is not None:
            self._membership.change(self._node)

    async def _hear(self) -> None:
        """Reads what the others published, all at once; who does not answer is known no more."""
        others = [node for node in self._view.nodes if node.name != self._node.name]
        heard = await asyncio.gather(*(self._note_of(node) for node in others))
        for node, note in zip(others, heard, strict=True):
            if note is None:
                self._notes.pop(node.name, None)
            else:
                self._notes[node.name] = note

    async def _note_of(self, node: Node) -> Note | None:
        try:
            client = await self._peers.client(node.address, NOTE_NAMESPACE)
            return await read_note(client)
        except (InfiniStoreError, ConfigError) as error:
            logger.debug("node %s does not answer: %s", node.name, error)
            return None

    async def _tell(self) -> None:
        note = Note(self._node.name, self._node.incarnation, self._node.state)
        self._notes[note.name] = note
        self._rounds_untold += 1
        # At times anyway: it may have been evicted, or purged.
        if note != self._published or self._rounds_untold >= _UNTOLD_ROUNDS_MAX:
            own = await self._peers.client(self._own_address, NOTE_NAMESPACE)
            await publish(own, note)
            self._published, self._rounds_untold = note, 0
