"""Where a peer is installed, and what its contender needs: a folder, logs, a size of memory."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infinistore.bench.child import Fleet, Recipe
from infinistore.bench.process import ChildProcess
from infinistore.errors import SetupError


class PeerMissingError(SetupError):
    """The peer is not installed here; the message says how to."""


@dataclass(frozen=True, slots=True)
class Place:
    """For one start of one peer; `arena_bytes` and `seed` are of its contender's arena."""

    folder: Path
    logs: Path
    arena_bytes: int
    seed: int

    def site(self, package: str) -> Path:
        """The packages of `make peer-PACKAGE`. Raises `PeerMissingError`."""
        site = (self.folder / package).absolute()
        if not (site / "installed").exists():
            raise PeerMissingError(f"not installed; run: make peer-{package}")
        return site

    def log(self, name: str) -> Path:
        """A log file for one of its processes."""
        return self.logs / f"{name.replace(' ', '-').replace(',', '')}.log"

    def fleet(
        self,
        name: str,
        make: str,
        arguments: Mapping[str, Any],
        *,
        far_pids: tuple[int, ...],
        environment: Mapping[str, str],
        rests: bool = False,
    ) -> Fleet:
        """One contender in a child, made by `make` ("module:callable")."""
        recipe = Recipe(make, self.arena_bytes, self.seed, arguments)
        return Fleet(
            name,
            [recipe],
            self.log(name),
            far_pids=far_pids,
            environment=environment,
            rests=rests,
        )


def python_path(*folders: Path) -> str:
    """PYTHONPATH with these folders behind what it has."""
    return os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *map(str, folders)])


def library_path(root: Path) -> str:
    """LD_LIBRARY_PATH with the libraries of Debian packages that were unpacked at `root`."""
    parts = [str(root / part / f"{platform.machine()}-linux-gnu") for part in ("lib", "usr/lib")]
    return os.pathsep.join([*parts, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])


def free_port() -> int:
    """A TCP port of the loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(process: ChildProcess, port: int, timeout_s: float = 30.0) -> None:
    """Until somebody listens there. Raises `SetupError` if the process ends or time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.has_ended() or time.monotonic() > deadline:
            raise SetupError(f"{process.name} did not listen; its log:\n{process.tail()}")
        time.sleep(0.05)
