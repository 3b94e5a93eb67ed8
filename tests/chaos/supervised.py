"""The server of a run: one address, however often it is killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from chaos.content import Key, parse
from infinistore.server.startup import UNFENCED_VARIABLE
from server_process import ServerProcess

POOL = "48MiB"
# Above what counts as slow: memory that comes back by this deadline only is seen to be late.
STAGE_TIMEOUT_S = 1.2
DRAIN_S_MAX = 5.0


class SupervisedServer:
    """`start()` it first."""

    def __init__(self, folder: Path, *, is_fenced: bool, flags: tuple[str, ...] = ()) -> None:
        self._flags = (
            f"--pool={POOL}",
            "--workers=2",
            "--drain-timeout=0.3s",
            "--stage-share=0.4",
            f"--stage-timeout={STAGE_TIMEOUT_S}s",
            f"--unix-socket={folder / 'socket'}",
            *flags,
        )
        self._environment = {} if is_fenced else {UNFENCED_VARIABLE: "1"}
        self._port = 0
        self._running: ServerProcess | None = None
        self.is_down = True  # because we wanted it so

    def start(self) -> float:
        """When it was ready, by the monotonic clock."""
        self._running = ServerProcess(
            f"--port={self._port}", *self._flags, environment=self._environment
        )
        ready_at = time.monotonic()
        self._port = int(self.process.address.rpartition(":")[2])
        self.is_down = False
        return ready_at

    @property
    def process(self) -> ServerProcess:
        assert self._running is not None
        return self._running

    @property
    def target(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    @property
    def url(self) -> str:
        return f"infinistore://127.0.0.1:{self._port}"

    def stop_for(self, seconds: float) -> float:
        """SIGSTOP and SIGCONT; when it went on."""
        os.kill(self.process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self.process.pid, signal.SIGCONT)
        return time.monotonic()

    def kill(self) -> float:
        """kill -9; when that was. Its remains are cleared away by `bury()`."""
        self.is_down = True
        killed_at = time.monotonic()
        os.kill(self.process.pid, signal.SIGKILL)
        return killed_at

    def bury(self) -> None:
        """Of a killed server; harmless for one that never was."""
        self.is_down = True
        if self._running is not None:
            self._running.kill()

    def drain(self) -> str:
        """SIGTERM; what was wrong with how it ended."""
        self.is_down = True
        self.process.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.process.wait(DRAIN_S_MAX)
        except subprocess.TimeoutExpired:
            return f"SIGTERM did not end the server in {DRAIN_S_MAX:g} s"
        finally:
            log = self.process.log()
            self.process.kill()
        return "" if status == 0 else f"the server ended with status {status}: {log[-2000:]}"

    def death(self) -> str:
        """What is to be said if it has ended by itself."""
        if self.is_down or self.process.process.poll() is None:
            return ""
        return f"the server died ({self.process.process.poll()}): {self.process.log()[-2000:]}"

    def stats(self) -> dict[str, Any]:
        return self.process.stats()

    def staged(self) -> list[Key]:
        """The keys of values that are being written."""
        return [parse(value["key"]) for value in self.process.admin("/staged")["staged"]]

    def integrity(self) -> str:
        """What is wrong with the pool's accounting; empty: nothing."""
        return str(self.process.admin("/integrity")["wrong"])

    def purge(self) -> None:
        self.process.admin("/purge", "POST")
