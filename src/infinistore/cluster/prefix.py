"""The longest prefix over the nodes: each counts what it has of it, from its first block on.

A node's count says where its first miss is; the first of all nodes' misses ends the prefix. If that
block may also be elsewhere the rest is asked there, until nobody knows more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from infinistore import _native
from infinistore.client.native import NativeCall
from infinistore.cluster.member import Member
from infinistore.cluster.placement import Ids
from infinistore.cluster.routes import NOBODY, Numbers
from infinistore.cluster.spread import LOST, Indexes
from infinistore.errors import Code

if TYPE_CHECKING:
    from infinistore.cluster.fleet import Fleet

ROUNDS_MAX = 8
_TURN_S = 0.005
# Takes the leases of nodes, and gives one id for all of them.
Lease = Callable[[list[tuple[Member, list[int]]]], int]


@dataclass(slots=True, eq=False)
class _Asked:
    member: Member
    units: Indexes
    call: NativeCall
    sent_at_s: float


class Prefix:
    """A lookup in flight, with the interface of the native one.

    It counts in units: blocks, if all keys of each live together, else keys.
    """

    outcomes = b""

    def __init__(
        self,
        fleet: Fleet,
        prefix_id: int,
        pack: _native.Pack,
        group: int,
        lease_ms: int,
        watch: Callable[[Prefix, Member, int], None],
        lease: Lease,
    ) -> None:
        self.id = prefix_id
        self._fleet = fleet
        self._pack = pack
        self._group = group
        self._lease_ms = lease_ms
        self._watch = watch
        self._lease = lease
        ids: Ids = np.frombuffer(pack.groups(), dtype=np.uint64)
        by_block = ids.reshape(-1, group)
        self._unit = group if bool((by_block == by_block[:, :1]).all()) else 1
        self._ids = ids[:: self._unit]
        self._found = 0  # units, from the first on
        self._column, self._fruitless, self._rounds = 0, 0, 0
        self._asked: list[_Asked] = []
        self._leases: list[tuple[Member, list[int]]] = []
        self._lease_id = 0
        self._failure: tuple[int, str] = (Code.OK, "")
        self._is_over = False
        self._lock = threading.RLock()
        with self._lock:
            self._ask()

    # ---- the interface of the native one ----

    @property
    def done(self) -> bool:
        """Whether the answer is there."""
        with self._lock:
            self._advance()
            return self._is_over

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it came in time."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.done:
            left_s = None if end_s is None else end_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            with self._lock:
                calls = [asked.call for asked in self._asked if not asked.call.done]
            if calls:
                calls[0].wait(left_s)  # all of a round are needed
        return True

    def cancel(self) -> None:
        """Drops the question; what it has leased meanwhile is let go."""
        with self._lock:
            if not self._is_over:
                self._failure = (Code.CANCELLED, "cancelled")
                for asked in self._asked:
                    asked.call.cancel()

    @property
    def blocks(self) -> int:
        """Blocks found, from the first on; after the end."""
        is_failed = self._failure[0] != Code.OK
        return 0 if is_failed else self._found * self._unit // self._group

    @property
    def lease_ids(self) -> list[int]:
        """One id for the leases of all nodes, if there are any."""
        return [self._lease_id] if self._lease_id else []

    @property
    def failure(self) -> tuple[int, str]:
        """Why there is no answer."""
        return self._failure

    @property
    def counters(self) -> dict[str, int]:
        """None: this is not for stats."""
        return {}

    # ---- rounds ----

    def _advance(self) -> None:
        while not self._is_over and all(asked.call.done for asked in self._asked):
            width, has_lost = self._take_round()
            is_exhausted = self._fruitless >= width - 1 and not has_lost
            is_whole = self._found == len(self._ids)
            is_failed = self._failure[0] != Code.OK or self._rounds >= ROUNDS_MAX
            if is_exhausted or is_whole or is_failed:
                self._end()
            else:
                with self._fleet.sending_again:
                    if self._fleet.is_closed:
                        self._failure = (Code.CLOSED, "the client is closed")
                        self._end()
                    else:
                        self._ask()

    def _take_round(self) -> tuple[int, bool]:
        """Takes a round's counts: how many nodes the next unit may be on; whether one was lost."""
        before, end, has_lost = self._found, len(self._ids), False
        for asked in self._asked:
            code, message = asked.call.failure
            count = 0
            if code == Code.OK:
                count = asked.call.blocks
                if asked.call.lease_ids:
                    self._leases.append((asked.member, asked.call.lease_ids))
            elif code in LOST and not self._fleet.is_closed:
                self._fleet.lost(asked.member, asked.sent_at_s)
                has_lost = True
                if not self._fleet.has_other_up(asked.member):
                    self._failure = (code, f"node {asked.member.node.name}: {message}")
            elif self._failure[0] == Code.OK:
                self._failure = (code, f"node {asked.member.node.name}: {message}")
            if count < len(asked.units):
                end = min(end, int(asked.units[count]))
        self._asked = []
        self._found = end
        if has_lost:
            self._column, self._fruitless = 0, 0
            return 1, True
        self._fruitless = 0 if end > before or self._rounds == 1 else self._fruitless + 1
        if end == len(self._ids):
            return 1, False
        width = len(_distinct(self._candidates(slice(end, end + 1))[0]))
        self._column = (self._column + 1) % max(1, width)
        return width, False

    def _candidates(self, units: slice) -> Numbers:
        return self._fleet.routes().readers(self._ids[units])

    def _ask(self) -> None:
        """Asks for all units that are not found: each at its candidate of this round's column."""
        self._rounds += 1
        first = self._found
        rows = self._candidates(slice(first, None))
        numbers = _column_of(rows, self._column)
        for number in np.unique(numbers).tolist():
            member = self._fleet.member(number) if number != NOBODY else None
            units = first + np.flatnonzero(numbers == number)
            if member is None or member.native is None:
                self._failure = (Code.DISCONNECTED, "no node of the cluster answers")
                continue
            keys = units if self._unit == 1 else _keys_of(units, self._unit)
            part = self._pack.part(keys)
            call = member.native.match(part, self._unit, self._lease_ms)
            self._asked.append(_Asked(member, units, call, time.monotonic()))
            self._watch(self, member, call.id)

    def _end(self) -> None:
        self._is_over = True
        if self._leases and self._failure[0] == Code.OK:
            self._lease_id = self._lease(self._leases)
            return
        for member, lease_ids in self._leases:
            if member.native is not None and not self._fleet.is_closed:
                member.native.post_lease(lease_ids, 0)

    def __reduce__(self) -> Any:
        raise TypeError("an operation in flight cannot be pickled")


def _keys_of(units: Indexes, size: int) -> Indexes:
    return np.ascontiguousarray((units[:, None] * size + np.arange(size)).reshape(-1))


def _distinct(row: Numbers) -> list[int]:
    return [number for number in dict.fromkeys(row.tolist()) if number != NOBODY]


def _column_of(rows: Numbers, column: int) -> Numbers:
    """The candidate of each row with that place among its different ones, or else its first."""
    if column == 0:
        return rows[:, 0]
    chosen = [_distinct(row) for row in rows]
    return np.array(
        [row[column] if column < len(row) else row[0] if row else NOBODY for row in chosen],
        dtype=np.int64,
    )
