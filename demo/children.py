"""Children: processes that end with this one, each in a group of its own with a log file."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_TERM_S = 15.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class ChildError(RuntimeError):
    """A child did not start, or ended when it should not."""


def free_port() -> int:
    """A TCP port of the loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    """In the child: SIGTERM when the parent dies, kill -9 included."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """One process and all that it starts."""

    def __init__(
        self, name: str, argv: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        """Starts it; what it prints goes to `log`."""
        self.name = name
        self.log = log
        self.began_s = time.monotonic()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            # A group of its own: Ctrl-C reaches us alone, and we end the children in order.
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    @property
    def pid(self) -> int:
        """Its process id, which is its group's too."""
        return self._process.pid

    def check(self) -> None:
        """Raises `ChildError` with the end of its log if it has ended."""
        status = self._process.poll()
        if status is not None:
            raise ChildError(f"{self.name} ended with status {status}; {self.log}:\n{self.tail()}")

    def tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait(self, is_ready: Callable[[], bool], timeout_s: float) -> float:
        """Waits until `is_ready`; returns the seconds since its start."""
        deadline_s = self.began_s + timeout_s
        while not is_ready():
            self.check()
            if time.monotonic() > deadline_s:
                raise ChildError(
                    f"{self.name} was not ready after {timeout_s:.0f} s; {self.log}:\n{self.tail()}"
                )
            time.sleep(0.2)
        return time.monotonic() - self.began_s

    def line(self, start: str, timeout_s: float = 30.0) -> str:
        """The first line of its log that begins with `start`, waited for."""

        def found() -> str | None:
            whole = self.log.read_text(errors="replace").rpartition("\n")[0]
            return next((text for text in whole.splitlines() if text.startswith(start)), None)

        self.wait(lambda: found() is not None, timeout_s)
        return found() or ""

    def kill(self) -> None:
        """kill -9 to the whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM to the process, SIGKILL to its group for what is left after a while."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_TERM_S)
        self.kill()


class Children:
    """All processes of a run; leaving the block ends them, the youngest first."""

    def __init__(self) -> None:
        """Has none yet."""
        self._all: list[Child] = []

    def __enter__(self) -> Children:
        """Makes SIGTERM and SIGHUP end the block as Ctrl-C does."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        """Ends what still runs; a second Ctrl-C must not leave half of it behind."""
        with _deaf():
            for child in reversed(self._all):
                child.stop()

    def start(
        self, name: str, argv: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> Child:
        """Starts one."""
        child = Child(name, argv, log, environment)
        self._all.append(child)
        return child

    def stop(self, *children: Child) -> None:
        """Ends these now."""
        for child in children:
            child.stop()
            self._all.remove(child)


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def answers(url: str) -> bool:
    """Whether a GET of `url` is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
