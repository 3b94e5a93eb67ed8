"""Faults of processes: killed, stopped and restarted ones, and the time until all is well again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable

from chaos.audit import audit
from chaos.auditor import Auditor
from chaos.board import Slot
from chaos.caller import BULK_BYTES
from chaos.content import BULK, Key
from chaos.fleet import ClientProcess, Fleet
from chaos.proxy import Proxy
from chaos.supervised import STAGE_TIMEOUT_S, SupervisedServer
from chaos.tally import Tally

KILLED_CLIENT, FORKED_CHILD = "killed client", "forked child"
STOPPED_CLIENT, STOPPED_WRITER = "stopped client", "stopped writer"
SEVERED_LINK = "severed link"
STOPPED_SERVER, KILLED_SERVER, DRAINED_SERVER = "stopped server", "killed server", "drained server"
PROCESS_FAULTS = (
    KILLED_CLIENT,
    FORKED_CHILD,
    STOPPED_CLIENT,
    STOPPED_WRITER,
    SEVERED_LINK,
    STOPPED_SERVER,
    KILLED_SERVER,
    DRAINED_SERVER,
)
_OF_BULK = (STOPPED_WRITER, SEVERED_LINK)
_PATIENCE_S = 10.0  # for what must come within one second: after it, it counts as never
START_S = 30.0  # for a client process to connect, however busy the machine is
_POLL_S = 0.002
_TRIES = 40  # to stop a writer while its grant is open


class Director:
    """Does one fault after the other, and leaves everybody at work after each."""

    def __init__(
        self,
        server: SupervisedServer,
        fleet: Fleet,
        proxy: Proxy,
        auditor: Auditor,
        tally: Tally,
        chance: random.Random,
        *,
        is_fenced: bool,
    ) -> None:
        self._server = server
        self._fleet = fleet
        self._proxy = proxy
        self._auditor = auditor
        self._tally = tally
        self._chance = chance
        self._is_fenced = is_fenced
        self._kinds = PROCESS_FAULTS if is_fenced else _OF_BULK
        self._faults: dict[str, Callable[[], bool]] = {
            KILLED_CLIENT: self._kill_client,
            FORKED_CHILD: self._kill_forked,
            STOPPED_CLIENT: self._stop_client,
            STOPPED_WRITER: self._stop_writer,
            SEVERED_LINK: self._sever_link,
            STOPPED_SERVER: self._stop_server,
            KILLED_SERVER: self._kill_server,
            DRAINED_SERVER: self._drain_server,
        }

    @property
    def rounds(self) -> int:
        """How often every kind has come."""
        return min(self._tally.faults[kind] for kind in self._kinds)

    def one_fault(self) -> None:
        """Of the kinds that came least often, one."""
        kinds = list(self._kinds)
        if (
            self._is_fenced and not self._fleet.bulk.is_ready.is_set()
        ):  # it starts; others meanwhile
            kinds = [kind for kind in kinds if kind not in _OF_BULK]
        fewest = min(self._tally.faults[kind] for kind in kinds)
        self.do(self._chance.choice([k for k in kinds if self._tally.faults[k] == fewest]))

    def do(self, kind: str) -> None:
        if self._faults[kind]():
            self._tally.fault(kind)
        if wrong := self._server.integrity():
            self._tally.find("leak", f"after a {kind}: {wrong}")

    # ---- waiting ----

    def _until(self, condition: Callable[[], object], timeout_s: float = _PATIENCE_S) -> bool:
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_S)
        return True

    def _note_recoveries(self, kind: str, since: float) -> None:
        """Until each caller that talks to the server itself has an answer again."""
        waiting = self._fleet.near_slots()
        end = time.monotonic() + _PATIENCE_S
        while waiting and time.monotonic() < end:
            for slot in [slot for slot in waiting if slot.good_at > since]:
                self._tally.recovered(kind, slot.good_at - since)
                waiting.remove(slot)
            time.sleep(_POLL_S)
        for _ in waiting:
            self._tally.recovered(kind, _PATIENCE_S)

    # ---- clients ----

    def _staged_of(self, client: ClientProcess) -> Key | None:
        return next((k for k in self._server.staged() if k.writer == client.serial), None)

    def _some_client(self, *, is_far: bool = False, transport: str | None = None) -> ClientProcess:
        """One that has connected; of those that start, the first to have done so."""
        clients = self._fleet.mixed(is_far=is_far, transport=transport)
        self._await(clients)
        return self._chance.choice([c for c in clients if c.is_ready.is_set()])

    def _await(self, clients: list[ClientProcess]) -> None:
        if not self._until(lambda: any(client.is_ready.is_set() for client in clients), START_S):
            serials = [client.serial for client in clients]
            raise TimeoutError(f"none of the clients {serials} connects in {START_S:g} s")

    def _kill_client(self) -> bool:
        if self._chance.random() < 0.2:  # through the proxy the end itself may be delayed
            self._fleet.replace(self._some_client(is_far=True))
            return True
        client = self._some_client()
        self._until(lambda: self._staged_of(client), 0.5)
        self._kill_and_measure(client, KILLED_CLIENT)
        return True

    def _kill_forked(self) -> bool:
        client = self._some_client(transport="shm")
        client.order("fork")
        if not client.has_forked.wait(_PATIENCE_S):
            self._tally.find("unexpected", "a client did not fork in time")
            return False
        self._until(lambda: self._staged_of(client), 0.5)
        try:
            self._kill_and_measure(client, FORKED_CHILD)
        finally:
            os.kill(client.forked, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # it came to us when its parent died
                os.waitpid(client.forked, 0)
        return True

    def _kill_and_measure(self, client: ClientProcess, kind: str) -> None:
        """Until what it had begun is free, and another can write the same key."""
        key = self._staged_of(client)
        began = time.monotonic()
        client.kill()
        if key is not None:
            if not self._until(lambda: self._staged_of(client) is None):
                self._tally.find("leak", f"{key.name} is staged for ever by a {kind}")
            if not self._auditor.write(key):
                self._tally.find("leak", f"{key.name} cannot be written after a {kind}")
            self._tally.recovered(kind, time.monotonic() - began)
        self._fleet.replace(client)

    def _stop_client(self) -> bool:
        """In the middle of anything, for less or more than the server waits for it."""
        client = self._some_client()
        client.stop()
        time.sleep(self._chance.uniform(0.05, STAGE_TIMEOUT_S + 0.4))
        went_on = time.monotonic()
        client.go_on()
        slots = self._fleet.slots_of(client)
        if self._until(lambda: all(slot.good_at > went_on for slot in slots)):
            self._tally.recovered(STOPPED_CLIENT, max(slot.good_at for slot in slots) - went_on)
        else:
            self._tally.recovered(STOPPED_CLIENT, _PATIENCE_S)
        return True

    # ---- writers that may still write ----

    def _is_bulk_staged(self) -> bool:
        return any(key.family == BULK for key in self._server.staged())

    def _stop_writer(self) -> bool:
        """In the middle of its copy, until past its deadline; then it goes on copying."""
        client = self._fleet.bulk
        self._await([client])
        for _ in range(_TRIES):
            time.sleep(self._chance.uniform(0, 0.01))
            client.stop()
            # Still open a moment later: what was sent before has been heard by then.
            if self._is_bulk_staged() and not self._until(lambda: not self._is_bulk_staged(), 0.03):
                break
            client.go_on()
        else:
            return False
        stopped_at = time.monotonic()
        ended = self._until(lambda: not self._is_bulk_staged(), STAGE_TIMEOUT_S + 3)
        took_s = time.monotonic() - stopped_at
        if not ended:
            self._tally.find("leak", "a stopped writer's grant has no end")
        elif took_s < STAGE_TIMEOUT_S / 2:  # a busy server heard late that it was filled
            client.go_on()
            return False
        if self._is_fenced and self._quarantined() == 0:
            text = f"memory of a writer that stood for {took_s:.2f} s is not in quarantine"
            self._tally.find("fence", f"{text}: {self._server.stats()}")
        keys = self._auditor.fill(self._server.process.pool_bytes)
        went_on = time.monotonic()
        client.go_on()
        slot = self._fleet.slots_of(client)[0]
        if self._until(lambda: slot.good_at > went_on):
            self._tally.recovered(STOPPED_WRITER, slot.good_at - went_on)
        self._auditor.read(keys)
        self._bury(client, is_held=ended)
        return True

    def _quarantined(self) -> int:
        return int(self._server.stats()["quarantined_bytes"])

    def _sever_link(self) -> bool:
        """Its connection ends while it lives, and copies."""
        client = self._fleet.bulk
        self._await([client])
        before = self._server.stats()["sessions_unfenced"]
        since = time.monotonic()
        client.order("sever")
        if not client.is_severed.wait(_PATIENCE_S):
            self._tally.find("unexpected", "a client did not end its connections in time")
            return False
        slot = self._fleet.slots_of(client)[0]
        if self._until(lambda: slot.good_at > since):
            self._tally.recovered(SEVERED_LINK, slot.good_at - since)
        is_held = self._server.stats()["sessions_unfenced"] > before
        if is_held:
            self._tally.fault("severed in mid copy")
        self._bury(client, is_held=is_held)
        return True

    def _bury(self, client: ClientProcess, *, is_held: bool) -> None:
        """The end of a process is the fence of what it left."""
        # Others may have left something too, and live on.
        stats = self._server.stats()
        rest = max(0, stats["quarantined_bytes"] - (BULK_BYTES if is_held else 0))
        unfenced = stats["sessions_unfenced"]
        began = time.monotonic()
        self._fleet.replace(client)

        def is_free() -> bool:
            now = self._server.stats()
            return bool(now["quarantined_bytes"] <= rest or now["sessions_unfenced"] > unfenced)

        if self._until(is_free):
            self._tally.recovered("quarantine", time.monotonic() - began)
        else:
            self._tally.find("leak", "a dead writer's memory stays in quarantine")

    # ---- the server ----

    def _stop_server(self) -> bool:
        with self._proxy.calm():
            went_on = self._server.stop_for(self._chance.uniform(0.05, 1.3))
            self._note_recoveries(STOPPED_SERVER, went_on)
        return True

    def _kill_server(self) -> bool:
        self._audit_sometimes()
        with self._proxy.calm():
            began_at = [(slot, slot.began_at) for slot in self._fleet.near_slots()]
            killed_at = self._server.kill()
            self._note_failures(killed_at, [slot for slot, began in began_at if began > 0])
            self._server.bury()
            self._note_recoveries(KILLED_SERVER, self._server.start())
        return True

    def _drain_server(self) -> bool:
        self._audit_sometimes()
        with self._proxy.calm():
            if wrong := self._server.drain():
                self._tally.find("unexpected", wrong)
            self._note_recoveries(DRAINED_SERVER, self._server.start())
        return True

    def _note_failures(self, killed_at: float, slots: list[Slot]) -> None:
        """How soon the calls that were under way have an end."""
        end = killed_at + 1.5
        while slots and time.monotonic() < end:
            for slot in [slot for slot in slots if slot.ended_at > killed_at]:
                self._tally.failed_fast_s.append(slot.ended_at - killed_at)
                slots.remove(slot)
            time.sleep(0.0005)
        self._tally.failed_fast_s += [1.5] * len(slots)

    def _audit_sometimes(self) -> None:
        """Before the evidence goes with the server."""
        if self._chance.random() < 0.4:
            audit(self._server, self._fleet, self._tally)
