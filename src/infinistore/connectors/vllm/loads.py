"""Loading: whole blocks between steps, or layer by layer ahead of a step's compute.

A load is over only when its copies are: a block whose bytes may still arrive is not given back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from infinistore.connectors._blocks import Addresses, CacheMap, pieces_of
from infinistore.connectors.vllm.fencing import fence
from infinistore.errors import Code, InfiniStoreError, RequestTimeoutError

if TYPE_CHECKING:
    from infinistore import Client


@dataclass(slots=True)
class LoadedBlocks:
    """The end of one request's asynchronous load."""

    request_id: str
    loaded: int
    failed_ids: list[int]
    causes: frozenset[Code] = frozenset()
    corrupt: int = 0  # of those that failed
    seconds: float = 0.0


@dataclass(slots=True)
class _Pending:
    request_id: str
    block_ids: list[int]
    batch: Any  # None: it could not even be submitted
    began_s: float
    is_void: bool = False  # what it loaded must not be used


@dataclass(slots=True)
class AsyncLoads:
    """Loads between steps: submitted in one, reported in the step in which they have ended."""

    cache: CacheMap
    timeout_s: float
    clock: Callable[[], float]
    drop_link: Callable[[], None]  # ends all copies
    _pending: list[_Pending] = field(default_factory=list)

    def start(
        self, client: Client | None, request_id: str, keys: list[bytes], block_ids: list[int]
    ) -> None:
        """Asks for the blocks, all layers of each."""
        batch, began_s = None, self.clock()
        if client is not None:
            try:
                batch = client.read_segments(
                    keys,
                    self.cache.segments(self.cache.addresses(block_ids), while_computing=False),
                    value_bytes=self.cache.value_bytes,
                )
            except InfiniStoreError:
                batch = None
        self._pending.append(_Pending(request_id, block_ids, batch, began_s))

    def wait(self, timeout_s: float) -> bool:
        """Waits a moment for the oldest load; False if there is none."""
        if not self._pending:
            return False
        batch = self._pending[0].batch
        if batch is not None and not batch.done:
            try:
                batch.wait(timeout_s)
            except RequestTimeoutError:
                return True
        return True

    def void(self) -> None:
        """Ends all loads now: the weights change, and what they have loaded is of no use."""
        fence([p.batch for p in self._pending if p.batch is not None], self.drop_link)
        for pending in self._pending:
            pending.is_void = True

    def take_ended(self) -> list[LoadedBlocks]:
        """The loads that have ended since the last call, each in exactly one way."""
        now = self.clock()
        late = [
            p.batch
            for p in self._pending
            if p.batch is not None and now > p.began_s + self.timeout_s
        ]
        fence(late, self.drop_link)
        ended: list[LoadedBlocks] = []
        waiting: list[_Pending] = []
        for pending in self._pending:
            if pending.batch is None or pending.batch.done:
                ended.append(_outcome(pending, now - pending.began_s))
            else:
                waiting.append(pending)
        self._pending = waiting
        return ended


def _outcome(pending: _Pending, seconds: float) -> LoadedBlocks:
    if pending.batch is None:
        causes = frozenset({Code.DISCONNECTED})
        failed = list(pending.block_ids)
        return LoadedBlocks(pending.request_id, 0, failed, causes, seconds=seconds)
    codes = [Code(code) for code in pending.batch.wait(0)]
    if pending.is_void:
        codes = [Code.CANCELLED] * len(codes)
    failed = [b for b, code in zip(pending.block_ids, codes, strict=True) if code != Code.OK]
    causes = frozenset(code for code in codes if code != Code.OK)
    corrupt = codes.count(Code.CORRUPT)
    loaded = len(codes) - len(failed)
    return LoadedBlocks(pending.request_id, loaded, failed, causes, corrupt, seconds)


class LayerLoads:
    """The loads of one step, piece by piece of the layers, in the order in which they compute."""

    def __init__(
        self,
        cache: CacheMap,
        client: Client | None,
        keys: list[bytes],
        block_ids: list[int],
        drop_link: Callable[[], None],
    ) -> None:
        self._drop_link = drop_link
        self._block_ids = block_ids
        self._layers = len(cache.layers)
        self._pieces = pieces_of(self._layers, cache.layer_bytes * len(keys), cache.piece_bytes)
        self._batches: list[Any] = []  # of each piece
        self._noted: set[int] = set()  # the pieces whose outcomes were taken
        self._failed: set[int] = set()
        self._corrupt: set[int] = set()
        self.causes: set[Code] = set()
        if client is None:
            self._lose(Code.DISCONNECTED)
            return
        addresses = cache.addresses(block_ids)
        for piece in self._pieces:
            runs = addresses[:, cache.columns(piece)]
            if not self._submit(cache, client, keys, piece.start, np.ascontiguousarray(runs)):
                return

    def _submit(
        self, cache: CacheMap, client: Client, keys: list[bytes], layer: int, addresses: Addresses
    ) -> bool:
        try:
            batch = client.read_segments(
                keys,
                cache.segments(addresses, while_computing=False),
                value_bytes=cache.value_bytes,
                value_offset=layer * cache.layer_bytes,
            )
        except InfiniStoreError:
            self._lose(Code.DISCONNECTED)
            return False
        self._batches.append(batch)
        return True

    def _lose(self, code: Code) -> None:
        self._failed.update(self._block_ids)
        self.causes.add(code)

    def wait_layer(self, layer: int, timeout_s: float) -> None:
        """Waits for one layer; past the timeout ends all of them, for compute goes on over them."""
        piece = layer // len(self._pieces[0])
        if piece >= len(self._batches) or piece in self._noted:
            return
        self._noted.add(piece)
        try:
            self._batches[piece].wait(timeout_s)
        except RequestTimeoutError:
            fence(self._batches, self._drop_link)
        self._note(self._batches[piece].wait(0))

    def _note(self, codes: Sequence[int]) -> None:
        for block_id, code in zip(self._block_ids, codes, strict=True):
            if code != Code.OK:
                self._failed.add(block_id)
                self.causes.add(Code(code))
            if code == Code.CORRUPT:
                self._corrupt.add(block_id)

    @property
    def layer_count(self) -> int:
        """Layers to wait for."""
        return self._layers

    @property
    def failed_ids(self) -> set[int]:
        """The engine's blocks of which some layer did not come."""
        return self._failed

    @property
    def corrupt(self) -> int:
        """How many of those have a layer whose bytes did not match their checksum."""
        return len(self._corrupt)

    @property
    def loaded(self) -> int:
        """Blocks that came whole, once all layers were waited for."""
        return len(self._block_ids) - len(self._failed)
