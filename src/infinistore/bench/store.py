"""The store as a contender: a server in a process of its own, and one client of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from infinistore.bench.certificate import make_certificate
from infinistore.bench.process import ChildProcess
from infinistore.bench.rounds import each_timed
from infinistore.errors import CorruptError, InfiniStoreError, SetupError

if TYPE_CHECKING:
    from infinistore import Blocks, Client
    from infinistore.bench.figures import Case
    from infinistore.bench.memory import Arena, Offsets, Order

Transport = Literal["shm", "tcp", "tls"]  # the last: TCP, by TLS

START_TIMEOUT_S = 30.0
POPULATE_TIMEOUT_S = 60.0
READY = re.compile(r"infinistore ready data=(\S+) ")
NAMESPACE = "infinistore-bench"
TOUCH_BLOCK_BYTES, TOUCH_BATCH_BLOCKS = 1024**2, 64


class BenchServer:
    """`python -m infinistore.server` on free ports, ended by close(), its pool populated."""

    def __init__(
        self, pool_bytes: int, arguments: Sequence[str] = (), *, speaks_tls: bool = False
    ) -> None:
        # Short, as a unix socket's path has to fit 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="infinistore-"))
        self.authority = ""  # the certificate that vouches for it
        if speaks_tls:
            chain, key = make_certificate(self._folder)
            self.authority = str(chain)
            arguments = (*arguments, f"--tls-cert-file={chain}", f"--tls-key-file={key}")
        command = [
            *(sys.executable, "-m", "infinistore.server", "--host=127.0.0.1", "--port=0"),
            *("--admin-port=0", f"--pool={pool_bytes}"),
            f"--unix-socket={self._folder / 'socket'}",
            *arguments,
        ]
        try:
            name = "the server for the benchmark"
            self._process = ChildProcess(name, command, self._folder / "log")
            self.pid = self._process.pid
            scheme = "infinistores" if speaks_tls else "infinistore"
            self.url = f"{scheme}://{self._read_address()}"
            self._wait_populated(pool_bytes)
        except BaseException:
            self.close()
            raise

    def _read_address(self) -> str:
        line = self._process.read_line(START_TIMEOUT_S)
        found = READY.match(line)
        if found is None:
            raise SetupError(f"not the readiness line of a server: {line!r}")
        return found[1]

    def _wait_populated(self, pool_bytes: int) -> None:
        import infinistore

        client = infinistore.connect(self.url, transport="tcp", tls_ca_file=self.authority or None)
        with contextlib.closing(client):
            deadline = time.monotonic() + POPULATE_TIMEOUT_S
            while client.stats()["populated_bytes"] < pool_bytes:
                if time.monotonic() > deadline:
                    raise SetupError(
                        f"the pool of {pool_bytes} bytes was not populated within "
                        f"{POPULATE_TIMEOUT_S:g} s; give a smaller --working-set"
                    )
                time.sleep(0.02)

    def close(self) -> None:
        if hasattr(self, "_process"):
            self._process.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class StoreContender:
    """One client: a pass writes new keys and reads them back.

    Unless the case waits for each batch, all are submitted, then sync().
    """

    def __init__(
        self,
        arena: Arena,
        *,
        url: str,
        transport: Transport,
        name: str = "",
        token: str | None = None,
        verify: bool = True,
        authority: str = "",
        far_pids: tuple[int, ...] = (),
    ) -> None:
        import infinistore

        self.name: str = name or transport
        self.far_pids = far_pids
        self._arena = arena
        self._client: Client = infinistore.connect(
            url,
            namespace=NAMESPACE,
            token=token,
            transport="tcp" if transport == "tls" else transport,
            verify=verify,
            tls_ca_file=authority or None,
        )
        self._passes = 0
        self._keys: list[bytes] = []

    def touch(self, size: int) -> None:
        """Uses `size` bytes of the pool once.

        A client maps a part of it when it first gets there, which one that lives for days has
        behind it; several clients of a benchmark would still be at it in every round.
        """
        import numpy as np

        from infinistore import Blocks

        block_bytes = min(TOUCH_BLOCK_BYTES, self._arena.source.size)
        keys = [f"{os.getpid()}-touch-{at}".encode() for at in range(0, size, block_bytes)]
        for first in range(0, len(keys), TOUCH_BATCH_BLOCKS):
            batch = keys[first : first + TOUCH_BATCH_BLOCKS]
            blocks = Blocks(batch, np.zeros(len(batch), np.uint64))
            self._client.write_cache(self._arena.source, blocks, block_bytes, unit="bytes")
            self._client.sync()
        self._client.delete(keys)

    def prepare(self, case: Case, order: Order) -> None:
        # Not equal to any key before, or nothing would be moved.
        self._passes += 1
        stem = f"{os.getpid()}-{self.name}-{self._passes}-"
        self._keys = [f"{stem}{index}".encode() for index in range(case.block_count)]
        self._batch_blocks = case.batch_blocks
        self._waits = case.waits
        size = case.block_bytes
        self._writes = [
            partial(self._client.write_cache, self._arena.source, blocks, size, unit="bytes")
            for blocks in self._batches(order.source)
        ]
        self._reads = [
            partial(self._client.read_cache, self._arena.target, blocks, size, unit="bytes")
            for blocks in self._batches(order.target)
        ]

    def _key_batches(self) -> list[list[bytes]]:
        step = self._batch_blocks
        return [self._keys[first : first + step] for first in range(0, len(self._keys), step)]

    def _batches(self, offsets: Offsets) -> list[Blocks]:
        from infinistore import Blocks

        step = self._batch_blocks
        return [
            Blocks(keys, offsets[index * step : (index + 1) * step])
            for index, keys in enumerate(self._key_batches())
        ]

    def write(self) -> Sequence[float]:
        return self._move(self._writes)

    def read(self) -> Sequence[float]:
        return self._move(self._reads)

    def _move(self, batches: Sequence[Callable[[], object]]) -> Sequence[float]:
        if self._waits:
            return each_timed(partial(self._call_and_sync, batch) for batch in batches)
        for batch in batches:
            batch()
        self._client.sync()
        return ()

    def _call_and_sync(self, batch: Callable[[], object]) -> None:
        batch()
        self._client.sync()

    def exists(self) -> Sequence[float]:
        return self._look_up(self._client.exists, lambda keys: [True] * len(keys))

    def match_prefix(self) -> Sequence[float]:
        return self._look_up(self._client.match_prefix, len)

    def _look_up(
        self, verb: Callable[[list[bytes]], object], wanted: Callable[[list[bytes]], object]
    ) -> Sequence[float]:
        taken = []
        for keys in self._key_batches():
            start = time.perf_counter()
            found = verb(keys)
            taken.append(time.perf_counter() - start)
            if found != wanted(keys):
                raise CorruptError(f"{self.name}: a lookup missed keys that are there")
        return taken

    def clean(self) -> None:
        """Erases what this pass wrote, so that the next finds room without an eviction."""
        self._client.delete(self._keys)
        self._keys = []

    def close(self) -> None:
        with contextlib.suppress(InfiniStoreError):
            if self._keys:
                self.clean()
        self._client.close()
