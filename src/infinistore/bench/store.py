"""The store as a contender: a server in a process of its own, and one client of it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from infinistore.errors import InfiniStoreError, SetupError

if TYPE_CHECKING:
    from infinistore import Blocks, Client
    from infinistore.bench.figures import Case
    from infinistore.bench.memory import Arena, Offsets, Order

Transport = Literal["shm", "tcp"]

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
POPULATE_TIMEOUT_S = 60.0
READY = re.compile(r"infinistore ready data=(\S+) ")
NAMESPACE = "infinistore-bench"


class BenchServer:
    """`python -m infinistore.server` on free ports, ended by close(), its pool populated."""

    def __init__(self, pool_bytes: int) -> None:
        # Short, as a unix socket's path has to fit 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="infinistore-"))
        self._log = self._folder / "log"
        command = [
            *(sys.executable, "-m", "infinistore.server", "--host=127.0.0.1", "--port=0"),
            *("--admin-port=0", f"--pool={pool_bytes}"),
            f"--unix-socket={self._folder / 'socket'}",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        self.pid = self._process.pid
        try:
            self.url = f"infinistore://{self._read_address()}"
            self._wait_populated(pool_bytes)
        except BaseException:
            self.close()
            raise

    def _read_address(self) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        text = b""
        while b"\n" not in text:
            wait_s = deadline - time.monotonic()
            readable = wait_s > 0 and select.select([self._process.stdout], [], [], wait_s)[0]
            chunk = os.read(self._process.stdout.fileno(), 4096) if readable else b""
            if not chunk:
                log = self._log.read_text(errors="replace")[-2000:]
                raise SetupError(f"the server for the benchmark did not start:\n{log}")
            text += chunk
        found = READY.match(text.decode())
        if found is None:
            raise SetupError(f"not the readiness line of a server: {text.decode().strip()!r}")
        return found[1]

    def _wait_populated(self, pool_bytes: int) -> None:
        import infinistore

        with contextlib.closing(infinistore.connect(self.url, transport="tcp")) as client:
            deadline = time.monotonic() + POPULATE_TIMEOUT_S
            while client.stats()["populated_bytes"] < pool_bytes:
                if time.monotonic() > deadline:
                    raise SetupError(
                        f"the pool of {pool_bytes} bytes was not populated within "
                        f"{POPULATE_TIMEOUT_S:g} s; give a smaller --working-set"
                    )
                time.sleep(0.02)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class StoreContender:
    """One client: a pass writes new keys or reads them back, all batches submitted, then sync()."""

    def __init__(
        self, url: str, token: str | None, transport: Transport, arena: Arena, far_pid: int | None
    ) -> None:
        import infinistore

        self.name: str = transport
        self.far_pid = far_pid
        self._arena = arena
        self._client: Client = infinistore.connect(
            url, namespace=NAMESPACE, token=token, transport=transport
        )
        self._passes = 0
        self._keys: list[bytes] = []

    def prepare(self, case: Case, order: Order) -> None:
        # Not equal to any key before, or nothing would be moved.
        self._passes += 1
        stem = f"{os.getpid()}-{self.name}-{self._passes}-"
        self._keys = [f"{stem}{index}".encode() for index in range(case.block_count)]
        self._block_bytes = case.block_bytes
        self._writes = self._batches(case, order.source)
        self._reads = self._batches(case, order.target)

    def _batches(self, case: Case, offsets: Offsets) -> list[Blocks]:
        from infinistore import Blocks

        return [
            Blocks(
                self._keys[first : first + case.batch_blocks], offsets[first:][: case.batch_blocks]
            )
            for first in range(0, case.block_count, case.batch_blocks)
        ]

    def write(self) -> None:
        for blocks in self._writes:
            self._client.write_cache(self._arena.source, blocks, self._block_bytes, unit="bytes")
        self._client.sync()

    def read(self) -> None:
        for blocks in self._reads:
            self._client.read_cache(self._arena.target, blocks, self._block_bytes, unit="bytes")
        self._client.sync()

    def clean(self) -> None:
        """Erases what this pass wrote, so that the next finds room without an eviction."""
        self._client.delete(self._keys)
        self._keys = []

    def close(self) -> None:
        with contextlib.suppress(InfiniStoreError):
            if self._keys:
                self.clean()
        self._client.close()
