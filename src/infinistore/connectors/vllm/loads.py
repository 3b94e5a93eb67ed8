"""Loading: whole blocks between steps, or layer by layer ahead of a step's compute.

A load is over only when its copies are: a block whose bytes may still arrive is not given back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from infinistore.connectors._blocks import Addresses, CacheMap
from infinistore.connectors.vllm.fencing import fence
from infinistore.connectors.vllm.groups import GroupCache
from infinistore.connectors.vllm.metadata import BlockLoad
from infinistore.errors import Code, InfiniStoreError, RequestTimeoutError

if TYPE_CHECKING:
    from infinistore import Client


@dataclass(slots=True)
class LoadedBlocks:
    """The end of one request's asynchronous load."""

    request_id: str
    loaded: int = 0
    loaded_bytes: int = 0
    failed_ids: list[int] = field(default_factory=list)
    causes: frozenset[Code] = frozenset()
    corrupt: int = 0  # of those that failed
    seconds: float = 0.0


@dataclass(slots=True)
class _Part:
    """A group's blocks of a load."""

    block_ids: list[int]  # of each value
    value_bytes: int
    batch: Any  # None: it could not even be submitted

    @property
    def is_done(self) -> bool:
        return self.batch is None or bool(self.batch.done)


@dataclass(slots=True)
class _Pending:
    request_id: str
    parts: list[_Part]
    began_s: float
    is_void: bool = False  # what it loaded must not be used

    @property
    def batches(self) -> list[Any]:
        return [part.batch for part in self.parts if part.batch is not None]


@dataclass(slots=True)
class AsyncLoads:
    """Loads between steps: submitted in one, reported in the step in which they have ended."""

    groups: Sequence[GroupCache]
    timeout_s: float
    clock: Callable[[], float]
    drop_link: Callable[[], None]  # ends all copies
    _pending: list[_Pending] = field(default_factory=list)

    def start(self, client: Client | None, loads: Iterable[BlockLoad]) -> None:
        """Asks for the blocks, all layers of each; a request may have a load for each group."""
        by_request: dict[str, list[BlockLoad]] = {}
        for load in loads:
            by_request.setdefault(load.request_id, []).append(load)
        for request_id, of_request in by_request.items():
            began_s = self.clock()
            parts = [self._ask(client, load) for load in of_request]
            self._pending.append(_Pending(request_id, parts, began_s))

    def _ask(self, client: Client | None, load: BlockLoad) -> _Part:
        group = self.groups[load.group]
        cache = group.cache
        part = _Part(group.of_each(load.block_ids), cache.value_bytes, None)
        if client is not None:
            with contextlib.suppress(InfiniStoreError):
                part.batch = client.read_segments(
                    group.keys(load.names),
                    cache.segments(cache.addresses(load.block_ids), while_computing=False),
                    value_bytes=cache.value_bytes,
                )
        return part

    def wait(self, timeout_s: float) -> bool:
        """Waits a moment for the oldest load; False if there is none."""
        if not self._pending:
            return False
        unfinished = [part.batch for part in self._pending[0].parts if not part.is_done]
        if unfinished:
            with contextlib.suppress(RequestTimeoutError):
                unfinished[0].wait(timeout_s)
        return True

    def void(self) -> None:
        """Ends all loads now: the weights change, and what they have loaded is of no use."""
        fence([batch for pending in self._pending for batch in pending.batches], self.drop_link)
        for pending in self._pending:
            pending.is_void = True

    def take_ended(self) -> list[LoadedBlocks]:
        """The loads that have ended since the last call, each in exactly one way."""
        now = self.clock()
        late = [p for p in self._pending if now > p.began_s + self.timeout_s]
        fence([batch for pending in late for batch in pending.batches], self.drop_link)
        ended: list[LoadedBlocks] = []
        waiting: list[_Pending] = []
        for pending in self._pending:
            if all(part.is_done for part in pending.parts):
                ended.append(_outcome(pending, now - pending.began_s))
            else:
                waiting.append(pending)
        self._pending = waiting
        return ended


def _outcome(pending: _Pending, seconds: float) -> LoadedBlocks:
    ended = LoadedBlocks(pending.request_id, seconds=seconds)
    for part in pending.parts:
        if part.batch is None:
            codes = [Code.DISCONNECTED] * len(part.block_ids)
        else:
            codes = [Code(code) for code in part.batch.wait(0)]
        if pending.is_void:
            codes = [Code.CANCELLED] * len(codes)
        failed = [b for b, code in zip(part.block_ids, codes, strict=True) if code != Code.OK]
        ended.failed_ids += failed
        ended.loaded += len(codes) - len(failed)
        ended.loaded_bytes += (len(codes) - len(failed)) * part.value_bytes
        ended.causes |= {code for code in codes if code != Code.OK}
        ended.corrupt += codes.count(Code.CORRUPT)
    return ended


class LayerLoads:
    """The loads of one step, piece by piece of the layers, in the order in which they compute."""

    def __init__(
        self,
        group: GroupCache,
        client: Client | None,
        loads: Sequence[BlockLoad],
        drop_link: Callable[[], None],
    ) -> None:
        cache = group.cache
        keys = group.keys(name for load in loads for name in load.names)
        block_ids = [block_id for load in loads for block_id in load.block_ids]
        self._drop_link = drop_link
        self._block_ids = group.of_each(block_ids)
        self._value_bytes = cache.value_bytes
        self._layers = len(cache.layers)
        self._pieces = cache.load_pieces(len(keys))
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
        """Values of blocks that came whole, once all layers were waited for."""
        return sum(block_id not in self._failed for block_id in self._block_ids)

    @property
    def loaded_bytes(self) -> int:
        """Bytes of those."""
        return self.loaded * self._value_bytes
