"""A process that ends with this one: its log in a file, lines in and out by pipes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from infinistore.errors import SetupError

STOP_TIMEOUT_S = 10.0
_LOG_SHOWN = 2000
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def apart(far_pids: Iterable[int]) -> Iterator[None]:
    """This thread on one CPU, all threads of the others on another.

    Where the scheduler puts two that wake each other decides how long a round trip takes, several
    times over, and it changes its mind: only with both ends placed alike can two be compared.
    """
    before = os.sched_getaffinity(0)
    near, *others = sorted(before)
    if not others:
        yield
        return
    for pid in far_pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(task), {others[0]})
    os.sched_setaffinity(0, {near})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # which ends a stopped one too


class ChildProcess:
    """One child. What it says on stdout is read by lines; its stderr is appended to `log`."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts it; `environment` is added to ours. Raises `SetupError` if it cannot be."""
        self.name = name
        self._log = log
        self._text = b""
        with log.open("ab") as out:
            self._log_begin = out.tell()
            try:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=out,
                    env={**os.environ, **(environment or {})},
                    preexec_fn=_end_with_parent,
                )
            except OSError as error:
                raise SetupError(f"{name} did not start: {error}") from error
        self.pid = self._process.pid

    def read_line(self, timeout_s: float) -> str:
        """Its next line. Raises `SetupError` with the end of its log if none comes in time."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._text:
            wait_s = deadline - time.monotonic()
            readable = wait_s > 0 and select.select([self._process.stdout], [], [], wait_s)[0]
            chunk = os.read(self._process.stdout.fileno(), 1 << 20) if readable else b""
            if not chunk:
                why = f"said nothing for {timeout_s:g} s" if not readable else "ended"
                raise SetupError(f"{self.name} {why}; the end of its log:\n{self.tail()}")
            self._text += chunk
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()

    def write_line(self, line: str) -> None:
        """Raises `SetupError` if it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise SetupError(f"{self.name} ended; the end of its log:\n{self.tail()}") from error

    def tail(self) -> str:
        """The end of what it wrote to its log."""
        written = self._log.read_bytes()[self._log_begin :]
        return written.decode(errors="replace")[-_LOG_SHOWN:].strip()

    def has_ended(self) -> bool:
        """Whether it ended by itself, or was ended."""
        return self._process.poll() is not None

    def close(self, grace_s: float = 0.0) -> None:
        """Closes its stdin, and ends it if it is not gone after `grace_s`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        for end, timeout_s in (
            (0, grace_s),
            (signal.SIGTERM, STOP_TIMEOUT_S),
            (signal.SIGKILL, STOP_TIMEOUT_S),
        ):
            self._process.send_signal(end)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
                break
        self._process.stdout.close()
