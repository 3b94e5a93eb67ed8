"""Counts the pool's pages while nobody is at work, and after everybody has gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from chaos.caller import LEASE_S
from chaos.fleet import Fleet
from chaos.supervised import STAGE_TIMEOUT_S, SupervisedServer
from chaos.tally import Tally

PAGE_BYTES = 4096
_PARTS = ("free_bytes", "reserved_bytes", "quarantined_bytes", "sealed_bytes")
_HELD = ("reserved_bytes", "quarantined_bytes", "pins", "leases")
_REST_S_MAX = 15.0  # the slowest call through the proxy
# Everything that has a deadline of its own has passed it then.
_BOUND_S = STAGE_TIMEOUT_S + LEASE_S + 1.0


def held(stats: dict[str, Any], names: tuple[str, ...] = _HELD) -> dict[str, int]:
    """What is held that nobody holds."""
    return {name: stats[name] for name in names if stats[name]}


def _await(condition: Callable[[], bool], timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def check_sum(server: SupervisedServer, tally: Tally) -> None:
    stats = server.stats()
    missing = stats["capacity_bytes"] - sum(stats[part] for part in _PARTS)
    if missing:
        tally.find("leak", f"{missing} bytes are neither {', '.join(_PARTS)}", missing)
    if wrong := server.integrity():
        tally.find("leak", wrong)


def check_held(server: SupervisedServer, tally: Tally, when: str, names: tuple[str, ...]) -> None:
    if not _await(lambda: not held(server.stats(), names), _BOUND_S):
        left = held(server.stats(), names)
        pages = sum(n for name, n in left.items() if name.endswith("bytes"))
        tally.find("leak", f"{when}: {left}, {server.staged()}", pages)


def audit(server: SupervisedServer, fleet: Fleet, tally: Tally) -> None:
    """Everybody rests: nothing may be held then."""
    fleet.board.ask_to_rest(True)
    try:
        slots = [slot for client in fleet.clients for slot in fleet.slots_of(client)]
        if not _await(lambda: all(slot.rests for slot in slots), _REST_S_MAX):
            return  # the watch tells of calls that hang
        if server.stats()["quarantined_bytes"]:  # a connection ended, and its process lives
            for client in [c for c in fleet.clients if c.kind.transport == "shm"]:
                fleet.replace(client)
        check_held(server, tally, "while all rest", _HELD)
        check_sum(server, tally)
        tally.audits += 1
    finally:
        fleet.board.ask_to_rest(False)


def final_audit(server: SupervisedServer, tally: Tally) -> None:
    """Everybody has gone: nothing may be held, and after a purge all of the pool is free."""
    check_held(server, tally, "after all have gone", (*_HELD, "sessions"))
    check_sum(server, tally)
    server.purge()
    stats = server.stats()
    lost = stats["capacity_bytes"] - stats["free_bytes"]
    if lost or stats["keys"]:
        tally.find("leak", f"after a purge {lost} bytes and {stats['keys']} keys are left", lost)
    check_sum(server, tally)
    tally.audits += 1
