"""Saving: one step's blocks, layer by layer while it runs, all acknowledged before it returns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from infinistore.connectors.vllm.fencing import fence
from infinistore.connectors.vllm.groups import GroupCache
from infinistore.connectors.vllm.metadata import BlockSaves
from infinistore.errors import Code, InfiniStoreError, RequestTimeoutError

if TYPE_CHECKING:
    from infinistore import Client

_FAILURES_MAX = 2
_PAUSE_S, _PAUSE_MAX_S = 5.0, 60.0
# The store said no, at once: this costs the step nothing, so saving goes on.
_REFUSALS = frozenset(
    {Code.SIZE_MISMATCH, Code.TOO_LARGE, Code.OUT_OF_MEMORY, Code.QUOTA_EXCEEDED}
    | {Code.OVERLOADED, Code.ABORTED}
)
# The connection is gone (a client closes it when an answer is late), and what it staged with it.
_LOST = frozenset({Code.DISCONNECTED, Code.TIMEOUT, Code.CLOSED})


class SaveGate:
    """Closed for a while after repeated failures: a dead or slow store must not stall each step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._pause_s = _PAUSE_S
        self._closed_until = float("-inf")

    @property
    def is_open(self) -> bool:
        """Whether saves may be tried."""
        return self._clock() >= self._closed_until

    def succeeded(self) -> None:
        """Notes a step whose saves the store answered."""
        self._failures = 0
        self._pause_s = _PAUSE_S

    def failed(self) -> None:
        """Notes a step whose saves were lost; the second in a row closes the gate."""
        self._failures += 1
        if self._failures >= _FAILURES_MAX:
            self._closed_until = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)
            self._failures = _FAILURES_MAX - 1  # one try after the pause


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What became of a step's blocks."""

    saved: int = 0
    saved_bytes: int = 0
    present: int = 0
    failed: int = 0
    is_withdrawn: bool = False  # because a load that these blocks build on failed
    is_link_lost: bool = False
    causes: frozenset[Code] = frozenset()

    def __add__(self, other: SaveReport) -> SaveReport:
        """What became of both groups' blocks."""
        return SaveReport(
            self.saved + other.saved,
            self.saved_bytes + other.saved_bytes,
            self.present + other.present,
            self.failed + other.failed,
            self.is_withdrawn or other.is_withdrawn,
            self.is_link_lost or other.is_link_lost,
            self.causes | other.causes,
        )


@dataclass(slots=True)
class _Sent:
    """One submitted batch: which of the step's blocks it carries, and how many layers of each."""

    indices: Sequence[int]
    layers: int
    batch: Any
    codes: list[Code] | None = None

    def result(self) -> list[Code] | None:
        """The outcomes, if they are there."""
        if self.codes is None and self.batch.done:
            self.codes = list(self.batch.wait(0))
        return self.codes


@dataclass(slots=True)
class _Fate:
    """What became of one block, piece after piece."""

    layers: int = 0
    is_present: bool = False
    is_partial: bool = False
    cause: Code | None = None

    def add(self, code: Code, layers: int) -> None:
        """Adds a piece's outcome."""
        if code == Code.OK:
            self.layers += layers
            # There when an earlier layer came, and gone since: begun in its middle.
            self.is_partial = self.is_partial or self.is_present
        elif code == Code.EXISTS:
            self.is_present = True
        else:
            self.cause = code


class StepSave:
    """A group's blocks of one step on their way: submitted in pieces, then finished once."""

    def __init__(
        self,
        client: Client,
        group: GroupCache,
        saves: BlockSaves,
    ) -> None:
        self._client = client
        self._cache = cache = group.cache
        self._keys = keys = group.keys(saves.names)
        self._parents = group.parents(saves.parents)
        self._depths = group.of_each(saves.depths)
        # Once for all layers: between two of them our code finds the CPU's caches full of others'.
        self._addresses = cache.addresses(saves.block_ids)
        self._pieces = cache.save_pieces(len(keys))
        self._unsent = {layer: piece for piece in self._pieces for layer in piece}
        self._computed: set[int] = set()
        self._is_poisoned = False
        self._is_link_lost = False
        self._sent: list[_Sent] = []

    def submit_layer(self, layer: int) -> None:
        """Takes a layer whose K and V are in place in all blocks; sends its piece once whole."""
        piece = self._unsent.get(layer)
        if piece is not None:
            self._computed.add(layer)
            if self._computed.issuperset(piece):
                self._send(piece)

    def submit_rest(self) -> None:
        """Sends what no hook has sent: everything in one piece, if nothing was sent so far."""
        layers = len(self._cache.layers)
        if len(self._unsent) == layers:
            self._send(range(layers))
        for piece in self._pieces:
            if piece.start in self._unsent:
                self._send(piece)

    def poison(self) -> None:
        """Stops the save: the blocks were computed from bytes that never came."""
        self._is_poisoned = True

    def finish(self, timeout_s: float, drop_link: Callable[[], None]) -> SaveReport:
        """Waits until the store has acknowledged everything, and withdraws what is incomplete.

        Past the timeout the copies are ended: after this nothing reads the engine's blocks.
        """
        deadline_s = time.monotonic() + timeout_s
        batches = [sent.batch for sent in self._sent]
        try:
            for batch in batches:
                batch.wait(max(0.0, deadline_s - time.monotonic()))
        except RequestTimeoutError:
            fence(batches, drop_link)
        fates = [_Fate() for _ in self._keys]
        for sent in self._sent:
            for index, code in zip(sent.indices, sent.result() or (), strict=True):
                fates[index].add(code, sent.layers)
        report, unfinished = self._report(fates)
        # A link that was lost withdraws by itself; to say it would wait for another connection.
        if unfinished and self._sent and not report.causes & _LOST:
            self._withdraw(unfinished)
        return report

    def _wanted(self) -> Sequence[int]:
        """All blocks but those that the first piece showed to be there already, or refused."""
        codes = self._sent[0].result() if self._sent else None
        if codes is None or all(code == Code.OK for code in codes):
            return range(len(self._keys))
        first = self._sent[0].indices
        return [index for index, code in zip(first, codes, strict=True) if code == Code.OK]

    def _send(self, piece: range) -> None:
        for layer in piece:
            del self._unsent[layer]
        indices = self._wanted()
        if self._is_poisoned or self._is_link_lost or not indices:
            return
        cache = self._cache
        addresses = self._addresses[:, cache.columns(piece)]
        keys, parents, depths = self._keys, self._parents, self._depths
        if len(indices) < len(keys):
            addresses = addresses[indices]
            keys = [keys[i] for i in indices]
            parents = [parents[i] for i in indices]
            depths = [depths[i] for i in indices]
        try:
            batch = self._client.write_segments(
                keys,
                cache.segments(np.ascontiguousarray(addresses), while_computing=True),
                value_bytes=cache.value_bytes,
                value_offset=piece.start * cache.layer_bytes,
                parents=parents,
                depths=depths,
            )
        except InfiniStoreError:
            self._is_link_lost = True
            return
        self._sent.append(_Sent(indices, len(piece), batch))

    def _report(self, fates: Sequence[_Fate]) -> tuple[SaveReport, list[bytes]]:
        saved = present = 0
        unfinished: list[bytes] = []
        for key, fate in zip(self._keys, fates, strict=True):
            if fate.cause is None and fate.is_present and not fate.is_partial:
                present += 1
            elif fate.cause is None and fate.layers == len(self._cache.layers):
                saved += 1
            else:
                unfinished.append(key)
        causes = frozenset(fate.cause for fate in fates if fate.cause is not None)
        is_lost = self._is_link_lost or not causes <= _REFUSALS
        saved_bytes = saved * self._cache.value_bytes
        report = SaveReport(
            saved, saved_bytes, present, len(unfinished), self._is_poisoned, is_lost, causes
        )
        return report, unfinished

    def _withdraw(self, keys: list[bytes]) -> None:
        with contextlib.suppress(InfiniStoreError):
            self._client.abort(keys)
