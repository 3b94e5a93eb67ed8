"""The client processes of a run: started, watched, stopped, killed and replaced."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.board import Board, Slot
from chaos.client import CALLERS

TESTS = Path(__file__).resolve().parents[1]
# Longer than any deadline of the product: 5 s and what its bytes take, behind one that was queued.
HANG_S = 12.0


@dataclass(frozen=True, slots=True)
class Kind:
    """What a client process is like."""

    style: str
    transport: str
    is_far: bool = False
    role: str = "mixed"


KINDS = (
    Kind("blocking", "tcp"),
    Kind("awaited", "tcp"),
    Kind("blocking", "shm"),
    Kind("awaited", "shm"),
    Kind("blocking", "tcp", is_far=True),
    Kind("awaited", "tcp", is_far=True),
    Kind("blocking", "shm", role="bulk"),
)


class ClientProcess:
    """One of them. `lines` gets what it says."""

    def __init__(
        self,
        kind: Kind,
        url: str,
        serial: int,
        seed: str,
        board: Path,
        place: int,
        log: Path,
        lines: Callable[[dict[str, Any]], None],
        *,
        in_cluster: bool = False,
    ) -> None:
        self.kind = kind
        self.serial = serial
        self.place = place
        self.is_ending = False
        self.forked = 0
        self.is_severed = threading.Event()
        self.has_forked = threading.Event()
        self.is_ready = threading.Event()
        self.asleep_until = 0.0  # until then (since a stop) it cannot be blamed for what it does
        self._log = log
        self._lines = lines
        options = [
            f"--url={url}",
            f"--transport={kind.transport}",
            f"--style={kind.style}",
            f"--role={kind.role}",
            f"--board={board}",
            f"--slot={place * CALLERS}",
            f"--serial={serial}",
            f"--seed={seed}",
            *(["--far"] if kind.is_far else []),
            *(["--in-cluster"] if in_cluster else []),
        ]
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "chaos.client", *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ | {"PYTHONPATH": str(TESTS)},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for text in lines:
                if text.endswith(b"\n"):  # else it was killed in the middle of it
                    self._take(json.loads(text))

    def _take(self, line: dict[str, Any]) -> None:
        if line["line"] == "ready":
            self.is_ready.set()
        elif line["line"] == "forked":
            self.forked = line["pid"]
            self.has_forked.set()
        elif line["line"] == "severed":
            self.is_severed.set()
        self._lines(line)

    def order(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """SIGSTOP; returns once it stands still."""
        self.asleep_until = float("inf")
        os.kill(self.process.pid, signal.SIGSTOP)
        while self._state() not in "Tt":
            time.sleep(0.0005)

    def _state(self) -> str:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)
        self.asleep_until = time.monotonic()

    def kill(self) -> None:
        self.is_ending = True
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # an order that it did not read
            self.process.stdin.close()

    def end(self) -> None:
        """Lets it finish: its client is closed as it should be."""
        self.is_ending = True
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def await_end(self, timeout_s: float) -> bool:
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._reader.join(timeout_s)
        return True

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stacks(self) -> str:
        """What its Python threads do now."""
        before = len(self.log())
        os.kill(self.process.pid, signal.SIGUSR2)
        time.sleep(0.3)
        return self.log()[before:]


class Fleet:
    """All of them, one of each kind; a killed one is replaced by another with a new serial."""

    def __init__(
        self,
        folder: Path,
        seed: str,
        url_of: Callable[[bool], str],
        lines: Callable[[dict[str, Any]], None],
        kinds: tuple[Kind, ...] = KINDS,
        *,
        in_cluster: bool = False,
    ) -> None:
        self._in_cluster = in_cluster
        self.board_path = folder / "board"
        self.board = Board(self.board_path, len(kinds) * CALLERS)
        self._folder = folder
        self._seed = seed
        self._url_of = url_of
        self._lines = lines
        self._serial = 0
        self.clients = [self._start(kind, place) for place, kind in enumerate(kinds)]

    def _start(self, kind: Kind, place: int) -> ClientProcess:
        self._serial += 1
        for slot in self.slots_at(place):
            slot.clear()
        return ClientProcess(
            kind,
            self._url_of(kind.is_far),
            self._serial,
            self._seed,
            self.board_path,
            place,
            self._folder / f"client-{self._serial}.log",
            self._lines,
            in_cluster=self._in_cluster,
        )

    def replace(self, client: ClientProcess) -> ClientProcess:
        """Kills it if it lives, and starts the next of its kind."""
        client.kill()
        self.clients[client.place] = self._start(client.kind, client.place)
        return self.clients[client.place]

    def slots_at(self, place: int) -> list[Slot]:
        return [self.board.slot(place * CALLERS + i) for i in range(CALLERS)]

    def slots_of(self, client: ClientProcess) -> list[Slot]:
        """Those in use: the bulk writer has one caller."""
        slots = self.slots_at(client.place)
        return slots[:1] if client.kind.role == "bulk" else slots

    def mixed(self, *, is_far: bool, transport: str | None = None) -> list[ClientProcess]:
        return [
            client
            for client in self.clients
            if client.kind.role == "mixed"
            and client.kind.is_far == is_far
            and transport in (None, client.kind.transport)
        ]

    @property
    def bulk(self) -> ClientProcess:
        return next(client for client in self.clients if client.kind.role == "bulk")

    def near_slots(self) -> list[Slot]:
        """Of the callers that talk to the server itself, and have connected."""
        near = [c for c in self.clients if not c.kind.is_far and c.is_ready.is_set()]
        return [slot for client in near for slot in self.slots_of(client)]

    def kill_all(self) -> None:
        for client in self.clients:
            client.kill()
