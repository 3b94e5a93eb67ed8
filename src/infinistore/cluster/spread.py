"""One call's keys over the nodes: each goes to its node, and on to the next one if need be.

Whoever waits, or asks whether it is done, takes it on: no thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from infinistore import _native
from infinistore.client.native import NativeBatch, NativeCall, NativeClient
from infinistore.cluster.member import Member
from infinistore.cluster.placement import Ids
from infinistore.cluster.routes import NOBODY, Numbers, Routes, untried
from infinistore.errors import Code

if TYPE_CHECKING:
    from infinistore.cluster.fleet import Fleet

Indexes = npt.NDArray[np.intp]
Handle = NativeBatch | NativeCall
# Sends a part to a node; the number counts how often its keys were sent before.
Send = Callable[[NativeClient, _native.Pack, int], Handle]
Candidates = Callable[[Routes, Ids], Numbers]

TRIES_MAX = 8
ROUNDS_MAX = 4  # of erasing what copies brought behind a replacement
# With parts on several nodes, so long for one of them before the others are looked at.
_TURN_S = 0.005
# The link, or the node, is gone: what was asked of it is asked of another.
LOST = frozenset({Code.DISCONNECTED, Code.TIMEOUT, Code.CLOSED, Code.DRAINING})
_IS_LOST = np.array([code in LOST for code in range(256)])


def _table(default: int, **ranks: int) -> npt.NDArray[np.uint8]:
    table = np.full(256, default, dtype=np.uint8)
    for code in LOST:
        table[code] = 1
    for name, rank in ranks.items():
        table[Code[name]] = rank
    return table


@dataclass(frozen=True, slots=True)
class Verb:
    """What a code means to a call: whether to ask on, and which of several codes counts."""

    ranks: npt.NDArray[np.uint8]  # the highest counts
    again: npt.NDArray[np.bool_]  # the next node may know better
    misses: bool = False  # a key whose nodes are all lost is missing, if others answer
    tries_lost: bool = True  # asks a node that did not answer lately, if it is told to


_ABSENT = np.array([c in (Code.MISSING, Code.CORRUPT, Code.LEASE_EXPIRED) for c in range(256)])
# A damaged value's bytes were written over the caller's, whatever another node says.
READ = Verb(
    _table(5, MISSING=2, LEASE_EXPIRED=3, CORRUPT=4, OK=6, EXISTS=6),
    _IS_LOST | _ABSENT,
    misses=True,
)
WRITE = Verb(_table(4, EXISTS=2, OK=3), _IS_LOST)
# Ranges of one value belong together: those of a lost node are not made up for elsewhere.
STAGE = Verb(WRITE.ranks, np.zeros(256, dtype=np.bool_))
_EVERYWHERE = _table(3, MISSING=1, OK=2)
_EVERYWHERE[list(LOST)] = 4
ERASE = Verb(_EVERYWHERE, STAGE.again, tries_lost=False)
# What a lost node had staged for us went with its connection.
ABORT = Verb(_EVERYWHERE, STAGE.again, misses=True, tries_lost=False)


@dataclass(slots=True, eq=False)
class _Part:
    member: Member
    indexes: Indexes
    attempt: int
    handle: Handle | None  # None: it could not be sent
    sent_at_s: float
    bytes: int
    code: int = Code.DISCONNECTED  # why not


class Spread:
    """A batch or call in flight, with the interface of the native ones."""

    blocks = 0

    def __init__(
        self,
        fleet: Fleet,
        spread_id: int,
        pack: _native.Pack,
        verb: Verb,
        send: Send,
        watch: Callable[[Spread, Member, int], None],
    ) -> None:
        self.id = spread_id
        self._fleet = fleet
        self._pack = pack
        self._verb = verb
        self._send: Send | None = send
        self._watch = watch  # told of every operation
        self._ids: Ids = np.frombuffer(pack.groups(), dtype=np.uint64)
        count = len(pack)
        self._codes = np.full(count, Code.DISCONNECTED, dtype=np.uint8)
        self._ranks = np.zeros(count, dtype=np.uint8)  # of these codes
        self._value_bytes: npt.NDArray[np.uint64] | None = None  # of a get up to a size
        self._tried: Numbers
        self._tries: Indexes | None = None  # the columns of `_tried` in use; None: all
        self._candidates: Candidates = Routes.writers
        self._messages: dict[int, str] = {}
        self._parts: list[_Part] = []
        self._is_cancelled = False
        self._lock = threading.RLock()
        self.lease_ids: list[int] = []
        self.on_lost: Callable[[Ids], None] | None = None  # told of the groups of a lost part

    @property
    def ids(self) -> Ids:
        """The group of each key."""
        return self._ids

    def start(self, lanes: Numbers, candidates: Candidates) -> Spread:
        """Sends each key to the nodes of its row; then, one by one, to its further candidates."""
        self._candidates = candidates
        self._tried = lanes
        if self._verb is STAGE:
            self._codes[(lanes == NOBODY).all(axis=1)] = Code.ABORTED
        with self._lock:
            everything = np.arange(len(self._ids))
            for lane in range(lanes.shape[1]):
                self._dispatch(everything, lanes[:, lane], 0)
        return self

    # ---- the interface of the native ones ----

    @property
    def done(self) -> bool:
        """Whether every key has its outcome."""
        with self._lock:
            return not self._advance()

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it ended in time."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                parts = self._advance()
            if not parts:
                return True
            left_s = None if end_s is None else end_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            turn_s = left_s if len(parts) == 1 else min(_TURN_S, left_s or _TURN_S)
            for part in parts:
                if part.handle is not None and not part.handle.done:
                    part.handle.wait(turn_s)
                    break

    def cancel(self) -> None:
        """Asks for an early end: soon done."""
        with self._lock:
            self._is_cancelled = True
            for part in self._parts:
                if part.handle is not None:
                    part.handle.cancel()

    @property
    def outcomes(self) -> bytes:
        """A code for each key; after the end."""
        return self._codes.tobytes()

    @property
    def failure(self) -> tuple[int, str]:
        """A failure of a whole call to a node that some key ended with; after the end."""
        for code in np.unique(self._codes).tolist():
            if code in self._messages:
                return code, self._messages[code]
        return Code.OK, ""

    @property
    def value_bytes(self) -> list[int]:
        """Of a get up to a size: how long each value that was found is; after the end."""
        return [] if self._value_bytes is None else self._value_bytes.tolist()

    def key(self, index: int) -> bytes:
        """The key at that place."""
        return self._pack.key(index)

    @property
    def counters(self) -> dict[str, int]:
        """None: this is not for stats."""
        return {}

    # ---- going on ----

    def _advance(self) -> list[_Part]:
        """Takes what has ended, sends on what must; the parts still on their way."""
        again = True
        while again:
            again = False
            for part in [p for p in self._parts if p.handle is None or p.handle.done]:
                self._parts.remove(part)
                self._take(part)
                again = True
        if not self._parts:
            self._send = None  # lets go of the caller's memory
        return self._parts

    def _take(self, part: _Part) -> None:
        part.member.moves(-part.bytes)
        codes = self._codes_of(part)
        if _IS_LOST[codes].any() and not self._fleet.is_closed:
            self._fleet.lost(part.member, part.sent_at_s)
            if self.on_lost is not None:
                self.on_lost(self._ids[part.indexes])
            if self._verb.misses and self._fleet.has_other_up(part.member):
                codes = np.where(_IS_LOST[codes], np.uint8(Code.MISSING), codes)
        rows, ranks = part.indexes, self._verb.ranks[codes]
        counts = ranks >= self._ranks[rows]
        self._codes[rows[counts]], self._ranks[rows[counts]] = codes[counts], ranks[counts]
        self._take_sizes(part, counts)
        ask_on = self._verb.again[codes]
        if ask_on.any() and not self._is_cancelled and part.attempt + 1 < TRIES_MAX:
            self._ask_on(rows[ask_on], part.attempt + 1)

    def _take_sizes(self, part: _Part, counts: npt.NDArray[np.bool_]) -> None:
        sizes = getattr(part.handle, "value_bytes", None)
        if sizes:
            if self._value_bytes is None:
                self._value_bytes = np.zeros(len(self._codes), dtype=np.uint64)
            self._value_bytes[part.indexes[counts]] = np.array(sizes, dtype=np.uint64)[counts]

    def _codes_of(self, part: _Part) -> npt.NDArray[np.uint8]:
        if part.handle is None:
            return np.full(len(part.indexes), part.code, dtype=np.uint8)
        code, message = part.handle.failure
        if code != Code.OK:
            self._note(part, code, message)
        codes = np.frombuffer(part.handle.outcomes, dtype=np.uint8)
        if len(codes) != len(part.indexes):  # a call that failed before it had any
            codes = np.full(len(part.indexes), code, dtype=np.uint8)
        return codes

    def _ask_on(self, rows: Indexes, attempt: int) -> None:
        with self._fleet.sending_again:
            if self._fleet.is_closed or self._send is None:
                return
            if self._tries is None:
                count, lanes = self._tried.shape
                more = np.full((count, lanes * TRIES_MAX), NOBODY, dtype=np.int64)
                self._tried = np.concatenate([self._tried, more], axis=1)
                self._tries = np.full(count, lanes, dtype=np.intp)
            candidates = self._candidates(self._fleet.routes(), self._ids[rows])
            numbers = untried(candidates, self._tried[rows])
            self._tried[rows, self._tries[rows]] = numbers
            self._tries[rows] += 1
            self._dispatch(rows, numbers, attempt)

    def _dispatch(self, rows: Indexes, numbers: Numbers, attempt: int) -> None:
        """Sends each of these keys to the node of that number, if any."""
        for number in np.unique(numbers).tolist():
            member = self._fleet.member(number) if number != NOBODY else None
            if member is not None:
                self._submit(member, rows[numbers == number], attempt)

    def _submit(self, member: Member, indexes: Indexes, attempt: int) -> None:
        native, send = member.native, self._send
        size = len(indexes) * self._pack.range_bytes
        part = _Part(member, indexes, attempt, None, time.monotonic(), size)
        if native is None or send is None or not (member.is_up() or self._verb.tries_lost):
            self._note(part, Code.DISCONNECTED, "it does not answer")
        else:
            try:
                part.handle = send(native, self._pack.part(indexes), attempt)
            except _native.Failure as failure:  # of a GPU, not of the node
                if attempt == 0:
                    raise
                self._note(part, *failure.args)
        member.moves(size)
        self._parts.append(part)
        if part.handle is not None:
            self._watch(self, member, part.handle.id)

    def _note(self, part: _Part, code: int, message: str) -> None:
        part.code = code
        self._messages.setdefault(code, f"node {part.member.node.name}: {message}")

    def __reduce__(self) -> Any:
        raise TypeError("an operation in flight cannot be pickled")


class Replacement(Spread):
    """A put that replaces: its keys go from all other nodes, before and behind the new value.

    Before, so that nobody reads the old value from a copy after he has read the new one. Behind,
    because a copy may have been on its way: rounds of erasing end with one that finds nothing, and
    what begins there later is made of the new value. A key of which some node does not answer
    fails: that node might still have the old value.
    """

    refresh: Callable[[], None] | None = None  # looks who is there now
    _put: Send | None = None
    _lanes: Numbers
    _rounds = 0  # of erasing behind the new value
    _rows: Indexes  # that have it

    def start(self, lanes: Numbers, candidates: Candidates) -> Spread:
        """Erases first; `lanes` are then written to."""
        self._put, self._send = self._send, _erase
        self._lanes, self._verb = lanes, ERASE
        super().start(self._others(), candidates)
        with self._lock:
            self._advance()
        return self

    def _others(self) -> Numbers:
        """A column for each node that is there, where it is none of the key's own."""
        columns = [
            np.where((self._lanes == number).any(axis=1), NOBODY, number)
            for number in self._fleet.routes().everyone
        ]
        return np.stack(columns, axis=1)

    def _advance(self) -> list[_Part]:
        while not super()._advance() and not self._is_over():
            self._next_step()
        return self._parts

    def _is_over(self) -> bool:
        return self._put is None and self._rounds == 0

    def _next_step(self) -> None:
        """All parts of the last one have ended."""
        with self._fleet.sending_again:
            if self._fleet.is_closed or self._is_cancelled:
                is_open = np.isin(self._codes, (Code.OK, Code.MISSING))
                self._end_rounds(np.flatnonzero(is_open), Code.CANCELLED)
            elif self._put is not None:
                self._write()
            else:
                self._erase_behind()

    def _write(self) -> None:
        rows = np.flatnonzero(self._ranks <= ERASE.ranks[Code.OK])
        self._codes[rows], self._ranks[rows] = Code.CANCELLED, 0
        self._send, self._put, self._verb = self._put, None, STAGE
        self._rounds = 1
        for lane in range(self._lanes.shape[1]):
            self._dispatch(rows, self._lanes[rows, lane], 0)

    def _erase_behind(self) -> None:
        if self.refresh is not None:
            self.refresh()
        if self._rounds == 1:  # the puts have ended
            self._rows = np.flatnonzero(self._codes == Code.OK)
        else:
            erased = self._codes[self._rows] == Code.OK
            is_clean = self._codes[self._rows] == Code.MISSING
            self._codes[self._rows[is_clean]] = Code.OK
            self._rows = self._rows[erased]
        others = self._others()[self._rows]
        has_others = (others != NOBODY).any(axis=1)
        self._rows, others = self._rows[has_others], others[has_others]
        if not len(self._rows) or self._rounds > ROUNDS_MAX:
            self._end_rounds(self._rows, Code.OVERLOADED)
            return
        self._rounds += 1
        self._send, self._verb = _erase, ERASE
        self._codes[self._rows], self._ranks[self._rows] = Code.MISSING, 0
        for lane in range(others.shape[1]):
            self._dispatch(self._rows, others[:, lane], 0)

    def _end_rounds(self, open_rows: Indexes, code: Code) -> None:
        self._codes[open_rows] = code
        self._put = self._send = None
        self._rounds = 0


def _erase(native: NativeClient, part: _native.Pack, _: int) -> Handle:
    return native.erase(part)
