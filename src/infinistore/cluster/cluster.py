"""A cluster as a session sees it: the interface of one server's native client, over all nodes."""

from __future__ import annotations

import itertools
import secrets
import select
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from infinistore import _native
from infinistore.client._session import ON_EXISTS
from infinistore.client.native import NativeClient
from infinistore.cluster.counting import Counting
from infinistore.cluster.fleet import Fleet
from infinistore.cluster.member import Member
from infinistore.cluster.placement import Ids
from infinistore.cluster.prefix import Prefix
from infinistore.cluster.routes import NOBODY, Numbers, Routes
from infinistore.cluster.spread import ABORT, ERASE, READ, STAGE, WRITE, Replacement, Send, Spread
from infinistore.cluster.stages import Range, Stages
from infinistore.cluster.watch import Watch

Operation = Spread | Prefix | Counting
# Leases are forgotten once they have ended, and the oldest if there are so many.
LEASES_MAX = 1 << 16
_Leased = tuple[float, list[tuple[Member, list[int]]]]


class Cluster:
    """All nodes as one. Thread-safe as the native client is; a session makes the checks."""

    def __init__(self, fleet: Fleet, watch: Watch) -> None:
        self._fleet = fleet
        self._watcher = watch
        self._ids = itertools.count(1)
        self._stages = Stages(fleet)
        self._leases: OrderedDict[int, _Leased] = OrderedDict()
        self._lock = threading.Lock()
        # For an event loop, which waits for the nodes' descriptors by one.
        self._poll: select.epoll | None = None
        self._polled: set[int] = set()  # members' numbers
        self._in_flight: dict[tuple[int, int], Operation] = {}  # by member and operation

    # ---- keys ----

    def put(
        self,
        pack: _native.Pack,
        value_bytes: int,
        value_offset: int,
        on_exists: int,
        device: int,
        stream: int,
        by_copy_engine: bool,
        kept: object | None,
    ) -> Spread:
        """Writes to each key's first nodes, as many as there are to be copies."""

        def send(native: NativeClient, part: _native.Pack, _: int) -> Any:
            return native.put(
                part, value_bytes, value_offset, on_exists, device, stream, by_copy_engine, kept
            )

        is_range = value_bytes != pack.range_bytes
        replaces = on_exists == ON_EXISTS["replace"]
        if replaces:
            self._watcher.prepare_replacing()
        spread = self._spread(
            pack, STAGE if is_range else WRITE, send, Replacement if replaces else Spread
        )
        if isinstance(spread, Replacement):
            spread.refresh = self._watcher.refresh
        lanes = self._writers(spread.ids)
        if is_range:
            part = Range(value_bytes, value_offset, pack.range_bytes)
            lanes = self._stages.lanes(spread.ids, lanes, part)
            spread.on_lost = self._stages.forget
        return spread.start(lanes, Routes.writers)

    def get(
        self,
        pack: _native.Pack,
        value_bytes: int,
        value_offset: int,
        wait_ms: int,
        lease_id: int,
        device: int,
        stream: int,
        kept: object | None,
    ) -> Spread:
        """Reads from a node that has the key, and from the next one if it has not."""
        leased = self._leased(lease_id) if lease_id else None

        def send(native: NativeClient, part: _native.Pack, attempt: int) -> Any:
            wait = wait_ms if attempt == 0 else 0
            lease = lease_id if leased is None else leased.get(id(native), 0)
            return native.get(part, value_bytes, value_offset, wait, lease, device, stream, kept)

        # A writer is waited for at the owner, and what is leased was found there.
        choose = None if wait_ms or lease_id else self._fleet.choose
        return self._read(pack, send, lambda routes, ids: routes.readers(ids, choose))

    def exists(self, pack: _native.Pack) -> Spread:
        """Which keys are there."""
        return self._read(pack, lambda native, part, _: native.exists(part), Routes.readers)

    def _read(
        self, pack: _native.Pack, send: Send, readers: Callable[[Routes, Ids], Numbers]
    ) -> Spread:
        spread = self._spread(pack, READ, send)
        return spread.start(readers(self._fleet.routes(), spread.ids)[:, :1], readers)

    def erase(self, pack: _native.Pack) -> Spread:
        """Erases keys wherever they may be."""
        spread = self._spread(pack, ERASE, lambda native, part, _: native.erase(part))
        return spread.start(_once(self._fleet.routes().holders(spread.ids)), Routes.holders)

    def abort(self, pack: _native.Pack) -> Spread:
        """Drops what this client has staged, wherever that is."""
        spread = self._spread(pack, ABORT, lambda native, part, _: native.abort(part))
        everyone = self._fleet.routes().everyone
        self._stages.forget(spread.ids)
        return spread.start(np.tile(everyone, (len(pack), 1)), Routes.holders)

    def match(self, pack: _native.Pack, group: int, lease_ms: int) -> Prefix:
        """Counts blocks from the first on, and leases them unless `lease_ms` is 0."""

        def lease(leases: list[tuple[Member, list[int]]]) -> int:
            return self._keep_lease(leases, time.monotonic() + lease_ms / 1000)

        self._watcher.start()
        return Prefix(self._fleet, next(self._ids), pack, group, lease_ms, self._note, lease)

    def _spread(
        self, pack: _native.Pack, verb: Any, send: Send, kind: type[Spread] = Spread
    ) -> Spread:
        self._watcher.start()
        return kind(self._fleet, next(self._ids), pack, verb, send, self._note)

    def _writers(self, ids: Ids) -> Numbers:
        return self._fleet.routes().writers(ids)[:, : self._fleet.replicas]

    # ---- leases ----

    def _keep_lease(self, leases: list[tuple[Member, list[int]]], end_s: float) -> int:
        lease_id = secrets.randbits(64) | 1
        with self._lock:
            now_s = time.monotonic()
            while self._leases:
                oldest = next(iter(self._leases))
                if self._leases[oldest][0] > now_s and len(self._leases) < LEASES_MAX:
                    break
                del self._leases[oldest]
            self._leases[lease_id] = (end_s, leases)
        return lease_id

    def _leased(self, lease_id: int) -> dict[int, int] | None:
        """The lease of each node; None: the id is none of ours."""
        with self._lock:
            entry = self._leases.get(lease_id)
        return entry and {id(member.native): ids[0] for member, ids in entry[1]}

    def post_lease(self, lease_ids: Sequence[int], lease_ms: int) -> None:
        """Renews leases, or with 0 releases them."""
        end_s = time.monotonic() + lease_ms / 1000
        for lease_id in lease_ids:
            with self._lock:
                entry = self._leases.pop(lease_id, None)
                if entry is not None and lease_ms:
                    self._leases[lease_id] = (end_s, entry[1])
            for member, ids in entry[1] if entry is not None else ():
                if member.native is not None:
                    member.native.post_lease(ids, lease_ms)

    # ---- all nodes ----

    def stats(self) -> Counting:
        """Asks all nodes that answer for their counters."""
        self._watcher.start()
        members = self._fleet.members()
        up = [member for member in members if member.is_up()]
        asked = [(m, m.native.stats()) for m in up or members if m.native is not None]
        counts = {"cluster_nodes": len(members), "cluster_nodes_up": len(up)}
        counting = Counting(next(self._ids), [call for _, call in asked], counts)
        for member, call in asked:
            self._note(counting, member, call.id)
        return counting

    def rouse(self) -> None:
        """Wakes the threads of all nodes: a batch will come soon."""
        for member in self._fleet.members():
            native = member.native if member.is_up() else None
            if native is not None:
                native.rouse()

    def prepare(self, device: int) -> None:
        """Shows the pools to a CUDA device, those of nodes that come later, too."""
        self._watcher.devices.add(device)
        for member in self._fleet.members():
            if member.native is not None:
                member.native.prepare(device)

    def keep(self, address: int, size: int, /) -> None:
        """Keeps memory registered with every node, those that come later, too."""
        self._watcher.kept[address] = size
        for member in self._fleet.members():
            if member.native is not None:
                member.native.keep(address, size)

    def forget(self, address: int, /) -> None:
        """Ends `keep` on every node."""
        self._watcher.kept.pop(address, None)
        for member in self._fleet.members():
            if member.native is not None:
                member.native.forget(address)

    def server(self) -> dict[str, Any]:
        """What the nodes said at their last connection: of all, and of each by its name."""
        nodes = {
            member.node.name: member.native.server()
            for member in self._fleet.members()
            if member.native is not None
        }
        facts = list(nodes.values())
        transports = {fact["transport"] for fact in facts}
        return {
            "incarnation": sum(fact["incarnation"] for fact in facts) % 2**64,
            "version": ", ".join(sorted({fact["version"] for fact in facts})),
            "pool_bytes": sum(fact["pool_bytes"] for fact in facts),
            "transport": transports.pop() if len(transports) == 1 else "mixed",
            "read_only": any(fact.get("read_only", False) for fact in facts),
            "no_sharing_reason": next((r for f in facts if (r := f["no_sharing_reason"])), ""),
            "nodes": nodes,
        }

    def counters(self) -> dict[str, int]:
        """This client's counters over all nodes."""
        sums: dict[str, int] = {}
        for member in self._fleet.members():
            for name, value in (member.native.counters() if member.native else {}).items():
                sums[name] = sums.get(name, 0) + value
        return sums

    # ---- an event loop's side ----

    def completion_fd(self) -> int:
        """Readable while `take_completed` has something to tell."""
        with self._lock:
            if self._poll is None:
                self._poll = select.epoll()
                self._watcher.tells_completions = True
            poll = self._poll
        for member in self._fleet.members():
            self._poll_member(poll, member)
        return poll.fileno()

    def _poll_member(self, poll: select.epoll, member: Member) -> None:
        if member.native is None or member.number in self._polled:
            return
        with self._lock:
            if member.number not in self._polled:
                poll.register(member.native.completion_fd(), select.EPOLLIN)
                self._polled.add(member.number)

    def _note(self, operation: Operation, member: Member, operation_id: int) -> None:
        if self._poll is not None:
            self._in_flight[member.number, operation_id] = operation
            self._poll_member(self._poll, member)

    def take_completed(self) -> list[int]:
        """The ids of what has ended since the last call; takes on what has not."""
        ended = []
        for member in self._fleet.everyone():
            if member.native is None or member.number not in self._polled:
                continue
            for operation_id in member.native.take_completed():
                operation = self._in_flight.pop((member.number, operation_id), None)
                if operation is not None and operation.done:
                    ended.append(operation.id)
        return ended

    # ---- ends ----

    def close(self) -> None:
        """Ends everything; what is in flight as `Code.CLOSED`."""
        self._fleet.close()
        self._watcher.close()
        for member in self._fleet.everyone():
            if member.notes is not None:
                member.notes.close()
            if member.native is not None:
                member.native.close()

    def close_after_fork(self) -> None:
        """In a forked child: lets go of the sockets."""
        for member in self._fleet.everyone():
            if member.native is not None:  # the notes' have sessions, which see to it
                member.native.close_after_fork()


def _once(numbers: Numbers) -> Numbers:
    """Each row's numbers once, and NOBODY in place of repetitions."""
    ordered = np.sort(numbers, axis=1)
    ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = NOBODY
    return ordered
