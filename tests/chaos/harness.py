"""One run: server, proxy and clients at work, faults until the time is up, and the reckoning."""

from __future__ import annotations

import ctypes
import random
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from chaos.audit import final_audit
from chaos.auditor import Auditor
from chaos.faults import Director
from chaos.fleet import HANG_S, KINDS, ClientProcess, Fleet, Kind
from chaos.proxy import Proxy
from chaos.report import Report, report, report_unfenced
from chaos.supervised import SupervisedServer
from chaos.tally import Tally

_WATCH_S = 0.1
_END_S_MAX = 20.0
_SAY_S = 30.0
_PR_SET_CHILD_SUBREAPER = 36


class Mortal(Protocol):
    """What may end by itself, and should not: a server, or all nodes."""

    def death(self) -> str: ...


class Watch:
    """A thread that sees calls without an end, and processes with one that nobody wanted."""

    def __init__(
        self, server: Mortal, fleet: Fleet, tally: Tally, proxy: Proxy | None = None
    ) -> None:
        self._server = server
        self._fleet = fleet
        self._proxy = proxy
        self._tally = tally
        self._told: set[tuple[int, int, float] | str] = set()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(_WATCH_S):
            for client in list(self._fleet.clients):
                self._look_at(client)
            if death := self._server.death():
                self._tell_once("server", "unexpected", death)
            if self._proxy is not None and self._proxy.error is not None:
                self._tell_once("proxy", "unexpected", f"the proxy failed: {self._proxy.error!r}")

    def _look_at(self, client: ClientProcess) -> None:
        if client.is_ending:
            return
        if client.process.poll() is not None and not client.is_ending:
            text = f"a client ended with {client.process.returncode}: {client.log()[-2000:]}"
            self._tell_once(f"client {client.serial}", "unexpected", text)
            return
        for number, slot in enumerate(self._fleet.slots_of(client)):
            began = slot.began_at
            since = max(began, client.asleep_until)
            if began and time.monotonic() - since > HANG_S + slot.patience_s:
                call = (client.serial, number, began)
                if call not in self._told:
                    self._told.add(call)
                    text = f"{slot.verb} of client {client.serial} ({client.kind})"
                    self._tally.find("hang", f"{text}: {client.stacks()}")

    def _tell_once(self, who: str, kind: str, what: str) -> None:
        if who not in self._told:
            self._told.add(who)
            self._tally.find(kind, what)


class Teller:
    """Says what was found when it was, and twice a minute how far the run is."""

    def __init__(self, tally: Tally, say: Callable[[str], None]) -> None:
        self._tally = tally
        self._say = say
        self._began = self._said_at = time.monotonic()
        self._told = 0

    def tell(self) -> None:
        now = time.monotonic()
        for finding in self._tally.findings[self._told :]:
            self._told += 1
            self._say(f"{now - self._began:.0f} s: {finding.kind}: {finding.what}")
        if now - self._said_at > _SAY_S:
            self._said_at = now
            self._say(
                f"{now - self._began:.0f} s: {sum(self._tally.operations.values())} operations, "
                f"{sum(self._tally.faults.values())} faults, {self._told} findings"
            )


def run(
    minutes: float,
    seed: str,
    *,
    is_fenced: bool = True,
    kinds: tuple[Kind, ...] = KINDS,
    proxy_interval_s: float = 0.15,
    rounds: int = 0,
    say: Callable[[str], None] = print,
) -> Report:
    """Runs for so long, and until each kind of process fault has come `rounds` times.

    The reckoning comes on top. Without fences it runs until harm is seen.
    """
    # What a killed client had forked is ours then, to be waited for.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    end = began + 60 * minutes
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="infinistore-chaos-") as name:
        folder = Path(name)
        server = SupervisedServer(folder, is_fenced=is_fenced)
        server.start()
        proxy = Proxy(server.target, f"{seed} proxy", proxy_interval_s)
        fleet = Fleet(
            folder, seed, lambda is_far: proxy.url if is_far else server.url, tally.take, kinds
        )
        auditor = Auditor(server, tally)
        watch = Watch(server, fleet, tally, proxy)
        director = Director(
            server,
            fleet,
            proxy,
            auditor,
            tally,
            random.Random(f"{seed} faults"),
            is_fenced=is_fenced,
        )
        teller = Teller(tally, say)
        try:
            try:
                while (time.monotonic() < end or director.rounds < rounds) and not server.death():
                    director.one_fault()
                    teller.tell()
                    if not is_fenced and tally.count_of("wrong", "corrupt"):
                        break
            except (OSError, AssertionError):  # the server does not answer, or start
                tally.find("unexpected", f"the run broke off: {traceback.format_exc()}")
            end_clients(fleet, tally)
            watch.stop()
            proxy.stop()
            auditor.close()
            for kind, count in proxy.counts.items():
                tally.fault(kind, count)
            if not server.death():
                final_audit(server, tally)
                if wrong := server.drain():
                    tally.find("unexpected", wrong)
        finally:
            watch.stop()
            fleet.kill_all()
            server.bury()
    took = (time.monotonic() - began) / 60
    return report(tally, seed, took, minutes) if is_fenced else report_unfenced(tally, seed, took)


def end_clients(fleet: Fleet, tally: Tally) -> None:
    """Every other one is killed, the rest are closed."""
    for index, client in enumerate(fleet.clients):
        if index % 2:
            client.kill()
        else:
            client.end()
    for client in fleet.clients:
        if not client.await_end(_END_S_MAX):
            text = f"client {client.serial} ({client.kind}) does not end: {client.stacks()}"
            tally.find("hang", text)
