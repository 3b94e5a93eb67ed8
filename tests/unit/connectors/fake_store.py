"""A store in this process, with the client's verbs that the connector uses, and its failures."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from infinistore.errors import Code, DisconnectedError, InfiniStoreError, RequestTimeoutError

GPU, STREAM = 1, 0x5000


class FakeGpu:
    """A GPU with one stream, which runs what is launched on it only when somebody waits for it."""

    def __init__(self) -> None:
        self._queue: list[Callable[[], None]] = []
        self.launched = 0
        self.prepared: list[FakeClient] = []  # clients whose pool it reaches

    @property
    def ran(self) -> int:
        """How much of what was launched has run."""
        return self.launched - len(self._queue)

    def launch(self, work: Callable[[], None]) -> None:
        self._queue.append(work)
        self.launched += 1

    def stream(self, device: int) -> int:
        assert device == GPU
        return STREAM

    def synchronize(self, device: int) -> None:
        assert device == GPU
        self.run_until(self.launched)

    def run_until(self, count: int) -> None:
        """Runs the first `count` of all that was ever launched."""
        while self.ran < count:
            self._queue.pop(0)()

    def after_launched(self, segs: Any, work: Callable[[], list[Code]]) -> Callable[[], list[Code]]:
        """`work` on a batch's segments, once all that is launched by now has run."""
        if segs.device is None:
            assert segs.stream == 0
            return work
        assert (segs.device, segs.stream) == (GPU, STREAM)
        count = self.launched

        def ordered() -> list[Code]:
            self.run_until(count)
            return work()

        return ordered


@dataclass
class Staged:
    """A value that is not complete."""

    bytes: bytearray
    filled: set[tuple[int, int]] = field(default_factory=set)

    @property
    def is_complete(self) -> bool:
        return sum(size for _, size in self.filled) == len(self.bytes)


class FakeBatch:
    """A batch that ends when its work was done, or when the test says so."""

    def __init__(self, work: Callable[[], list[Code]], held: bool, count: int) -> None:
        self._work = work
        self._count = count
        self.is_stubborn = False  # goes on although it was cancelled
        self._outcomes: list[Code] | None = None
        self._event = threading.Event()
        if not held:
            self.run()

    def run(self) -> None:
        if self._outcomes is None:
            self._outcomes = self._work()
            self._event.set()

    def fail(self, code: Code) -> None:
        if self._outcomes is None:
            self._outcomes = [code] * self._count
            self._event.set()

    def cancel(self) -> None:
        if not self.is_stubborn:
            self.fail(Code.CANCELLED)

    @property
    def done(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> list[Code]:
        if not self._event.wait(timeout_s):
            raise RequestTimeoutError("the batch is held")
        assert self._outcomes is not None
        return self._outcomes


@dataclass
class FakeLookup:
    """A lookup's answer, there at once or when the test says so."""

    answer: Callable[[], tuple[int, int]]
    held: bool = False
    is_late: bool = False  # there for who waits a little
    dies: bool = False  # the store does, while somebody waits
    waits: int = 0
    blocks: int = 0
    lease_ids: list[int] = field(default_factory=list)
    is_cancelled: bool = False
    error: InfiniStoreError | None = None
    done: bool = False

    def __post_init__(self) -> None:
        if not self.held:
            self.run()

    def run(self) -> None:
        self.blocks, lease_id = self.answer()
        self.lease_ids = [lease_id] if lease_id else []
        self.done = True

    def wait(self, timeout_s: float | None = None) -> int:
        self.waits += 1
        if self.is_late:
            self.run()
        if self.dies:
            self.fail()
            raise DisconnectedError("the store is gone")
        if not self.done:
            raise RequestTimeoutError("the lookup is held")
        return self.blocks

    def cancel(self) -> None:
        self.is_cancelled = True

    def fail(self) -> None:
        self.error, self.done = DisconnectedError("the store is gone"), True


class FakeStore:
    """What the server holds, and switches for what goes wrong."""

    def __init__(self) -> None:
        self.sealed: dict[tuple[str, bytes], bytes] = {}
        self.chains: dict[tuple[str, bytes], tuple[bytes | None, int]] = {}
        self.answers_late = False  # lookups that are held, once somebody waits
        self.dies_awaited = False
        self.staged: dict[tuple[str, bytes], Staged] = {}
        self.leases: dict[int, list[bytes]] = {}
        self.renewed: list[int] = []
        self.clients: list[FakeClient] = []
        self.gpu = FakeGpu()
        self.log: list[tuple[str, int, int]] = []  # verb, keys, offset
        self.hold_lookups = self.hold_reads = self.hold_writes = False
        self.read_codes: dict[bytes, Code] = {}  # key -> what its next reads say
        self.write_code: Code | None = None
        self.is_dead = False
        self.is_read_only = False
        self.is_stubborn = False  # batches go on although they were cancelled
        self._next_lease = 1

    def connect(self, settings: Any, namespace: str) -> FakeClient:
        """In place of `link.connect`."""
        if self.is_dead:
            raise DisconnectedError("the store is gone")
        client = FakeClient(self, namespace)
        self.clients.append(client)
        return client

    def lease(self, keys: list[bytes]) -> int:
        lease_id, self._next_lease = self._next_lease, self._next_lease + 1
        self.leases[lease_id] = keys
        return lease_id


class FakeClient:
    """The verbs of `infinistore.Client` that the connector calls."""

    def __init__(self, store: FakeStore, namespace: str) -> None:
        self.store = store
        self.namespace = namespace
        self.batches: list[FakeBatch] = []
        self.lookups: list[FakeLookup] = []
        self.is_closed = False
        self.server = {"read_only": store.is_read_only}

    def write_segments(
        self,
        keys: Sequence[bytes],
        segs: Any,
        *,
        value_bytes: int,
        value_offset: int = 0,
        on_exists: str = "keep",
        parents: Sequence[bytes | None] | None = None,
        depths: Sequence[int] | None = None,
    ) -> FakeBatch:
        self._check()
        rows = np.asarray(segs.addresses, dtype=np.uint64).reshape(len(keys), -1)
        assert parents is not None
        assert depths is not None
        assert len(parents) == len(depths) == len(keys)
        self.store.log.append(("write", len(keys), value_offset))

        def work() -> list[Code]:
            return [
                self._put(key, row, segs.segment_bytes, value_bytes, value_offset, parent, depth)
                for key, row, parent, depth in zip(keys, rows, parents, depths, strict=True)
            ]

        return self._batch(segs, work, self.store.hold_writes, len(keys))

    def _put(
        self,
        key: bytes,
        row: Any,
        size: int,
        value_bytes: int,
        at: int,
        parent: bytes | None,
        depth: int,
    ) -> Code:
        store, name = self.store, (self.namespace, key)
        if store.write_code is not None:
            return store.write_code
        if name in store.sealed:
            return Code.EXISTS
        staged = store.staged.setdefault(name, Staged(bytearray(value_bytes)))
        for address in row:
            staged.bytes[at : at + size] = ctypes.string_at(int(address), size)
            staged.filled.add((at, size))
            at += size
        if staged.is_complete:
            store.sealed[name] = bytes(store.staged.pop(name).bytes)
            store.chains[name] = (parent, depth)
        return Code.OK

    def read_segments(
        self,
        keys: Sequence[bytes],
        segs: Any,
        *,
        value_offset: int = 0,
        value_bytes: int | None = None,
        wait_s: float = 0.0,
    ) -> FakeBatch:
        self._check()
        rows = np.asarray(segs.addresses, dtype=np.uint64).reshape(len(keys), -1)
        self.store.log.append(("read", len(keys), value_offset))

        def work() -> list[Code]:
            return [
                self._get(key, row, segs.segment_bytes, value_bytes, value_offset)
                for key, row in zip(keys, rows, strict=True)
            ]

        return self._batch(segs, work, self.store.hold_reads, len(keys))

    def _get(self, key: bytes, row: Any, size: int, value_bytes: int | None, at: int) -> Code:
        value = self.store.sealed.get((self.namespace, key))
        if key in self.store.read_codes:
            return self.store.read_codes[key]
        if value is None:
            return Code.MISSING
        if value_bytes is not None and len(value) != value_bytes:
            return Code.SIZE_MISMATCH
        for address in row:
            ctypes.memmove(int(address), value[at : at + size], size)
            at += size
        return Code.OK

    def lookup(
        self, keys: Sequence[bytes], *, group: int = 1, lease_s: float | None = None
    ) -> FakeLookup:
        self._check()
        asked = list(keys)

        def answer() -> tuple[int, int]:
            blocks = 0
            while (blocks + 1) * group <= len(asked) and all(
                (self.namespace, key) in self.store.sealed
                for key in asked[blocks * group : (blocks + 1) * group]
            ):
                blocks += 1
            found = asked[: blocks * group]
            return blocks, self.store.lease(found) if lease_s and found else 0

        lookup = FakeLookup(
            answer, self.store.hold_lookups, self.store.answers_late, self.store.dies_awaited
        )
        self.lookups.append(lookup)
        return lookup

    def renew(self, lease_ids: Sequence[int], lease_s: float) -> None:
        self.store.renewed.extend(lease_ids)

    def release(self, lease_ids: Sequence[int]) -> None:
        for lease_id in lease_ids:
            self.store.leases.pop(lease_id, None)

    def abort(self, keys: Sequence[bytes]) -> None:
        self.store.log.append(("abort", len(keys), 0))
        for key in keys:
            self.store.staged.pop((self.namespace, key), None)

    def close(self) -> None:
        self.is_closed = True
        for batch in self.batches:
            batch.fail(Code.CLOSED)
        for name in [n for n in self.store.staged if n[0] == self.namespace]:
            del self.store.staged[name]

    def prepare_device(self, device: int) -> None:
        self._check()
        assert device == GPU
        self.store.gpu.prepared.append(self)

    def _batch(
        self, segs: Any, work: Callable[[], list[Code]], held: bool, count: int
    ) -> FakeBatch:
        batch = FakeBatch(self.store.gpu.after_launched(segs, work), held, count)
        batch.is_stubborn = self.store.is_stubborn
        self.batches.append(batch)
        return batch

    def _check(self) -> None:
        if self.store.is_dead or self.is_closed:
            raise DisconnectedError("the store is gone")
