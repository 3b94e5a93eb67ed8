"""A node's part in its cluster, on a thread of its own; and what it says of itself to others."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

from infinistore.cluster.node.duties import Duties, NodeServer
from infinistore.cluster.node.plan import ClusterPlan
from infinistore.cluster.nodes import Node
from infinistore.cluster.view import Note
from infinistore.config import ServerConfig
from infinistore.errors import RequestTimeoutError

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 5.0
_ASK_TIMEOUT_S = 5.0


class Agent:
    """Made in any thread; `start` and `stop` once each. The rest may be called at any time.

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
        server: NodeServer,
        on_drained: Callable[[], object] = lambda: None,
    ) -> None:
        self._duties = Duties(plan, config, node, own_address, token, server, on_drained)
        self._thread = threading.Thread(target=self._run, name="infinistore-cluster", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._has_begun = threading.Event()
        self._failure = ""

    def start(self) -> None:
        self._thread.start()
        self._has_begun.wait()

    def stop(self) -> None:
        """Leaves the cluster; returns once the thread has ended, or late."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_STOP_TIMEOUT_S)

    def drain(self, name: str | None) -> str:
        """Has a node (None: this one) leave; its name. Raises `InfiniStoreError`."""
        assert self._loop is not None
        name = name or self._duties.node.name
        asked = asyncio.run_coroutine_threadsafe(self._duties.drain(name), self._loop)
        try:
            asked.result(_ASK_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            asked.cancel()
            raise RequestTimeoutError(f"node {name} does not answer") from None
        return name

    @property
    def is_connected(self) -> bool:
        """Whether the registry answers; a static list always does."""
        membership = self._duties.membership
        return membership is None or membership.is_connected

    @property
    def problem(self) -> str:
        """What an operator should know; empty: all is well."""
        membership = self._duties.membership
        return self._failure or (membership.problem if membership is not None else "")

    def health(self) -> dict[str, Any]:
        """The part of /health."""
        return {
            "node": self._duties.node.name,
            "state": self._duties.node.state,
            "nodes": len(self._duties.view.nodes),
            "connected": self.is_connected,
            "problem": self.problem,
        }

    def status(self) -> dict[str, Any]:
        """The answer of /cluster."""
        duties, notes = self._duties, dict(self._duties.notes)
        walk = duties.walk
        return self.health() | {
            "nodes": [row(node, notes.get(node.name)) for node in duties.view.nodes],
            "restless": sorted(duties.restless),
            "background": {
                "sent_bytes": duties.rate.spent_bytes,
                "bytes_per_s_max": duties.rate.bytes_per_s,
            },
            "last_walk": {
                "sent_keys": walk.sent_keys,
                "sent_bytes": walk.sent_bytes,
                "left_keys": walk.left_keys,
                "failures": walk.failures,
            },
        }

    def metrics(self) -> dict[str, int]:
        """Counters for /metrics, by the names of the server's snapshot."""
        copier, name = self._duties.copier, self._duties.node.name
        notes = list(self._duties.notes.values())
        return {
            "cluster_nodes": len(self._duties.view.nodes),
            "cluster_connected": int(self.is_connected),
            "cluster_background_bytes": self._duties.rate.spent_bytes,
            "cluster_copies": sum(len(names) for names in copier.made().values()),
            "cluster_copies_held": sum(
                name in names for note in notes for names in note.copies.values()
            ),
            "cluster_copies_made": copier.made_total,
            "cluster_copies_withdrawn": copier.withdrawn_total,
            "cluster_settled_keys": self._duties.settled_keys,
        }

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as error:  # the server serves on, alone
            self._failure = f"the cluster's agent failed: {error!r}"
            logger.exception("the cluster's agent failed; this node takes no part any more")
        finally:
            self._has_begun.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._has_begun.set()
        await self._duties.run(self._stop)


def row(node: Node, note: Note | None) -> dict[str, Any]:
    """One node for /cluster: what the registry knows of it, and what it said last."""
    known = {
        "name": node.name,
        "address": node.address,
        "state": node.state,
        "incarnation": node.incarnation,
        "capacity_bytes": node.capacity_bytes,
        "answers": note is not None,
        "bytes_per_s": 0.0,
        "copies": {},
    }
    if note is not None:
        known |= {
            "state": note.state,
            "incarnation": note.incarnation,
            "bytes_per_s": note.bytes_per_s,
            "copies": {f"{group:016x}": list(names) for group, names in note.copies.items()},
        }
    return known
