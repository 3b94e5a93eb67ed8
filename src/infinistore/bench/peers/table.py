"""The peers that there are, and what starting one gives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from infinistore.bench.child import Fleet
from infinistore.bench.peers import mooncake, nixl, redis
from infinistore.bench.peers.place import PeerMissingError, Place
from infinistore.bench.store import Transport
from infinistore.errors import SetupError


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to run one peer. `transport`: the kind of ours that it stands beside."""

    name: str
    package: str  # of `make peer-PACKAGE`
    transport: Transport
    settings: str
    start: Callable[[Place], AbstractContextManager[Fleet]]


def _redis(name: str, transport: Transport, verbs: str, keys_at_once: bool) -> Peer:
    over = "TCP" if transport == "tcp" else "a unix socket"
    settings = (
        f"redis-server 7.0 without persistence, redis-py and hiredis over {over}, {verbs}; blocks "
        "handed over as views, by the packer that does not copy them"
    )
    return Peer(
        name, "redis", transport, settings,
        lambda place: redis.start(place, name, transport, keys_at_once),
    )  # fmt: skip


def _nixl(name: str, transport: Transport, choice: str) -> Peer:
    settings = (
        f"NIXL 1.5 over UCX, {nixl.TRANSPORTS[choice].about}; descriptor lists of both "
        "sides prepared before, a transfer a batch, all posted or one by one; a progress thread "
        "at the far end"
    )
    return Peer(name, "nixl", transport, settings, lambda place: nixl.start(place, name, choice))


PEERS: tuple[Peer, ...] = (
    _redis("Redis TCP, pipeline", "tcp", "SET and GET in pipelines of a batch", False),
    _redis("Redis TCP, mget", "tcp", "MSET and MGET of a batch", True),
    Peer("Mooncake TCP", "mooncake", "tcp", mooncake.SETTINGS, mooncake.start),
    _nixl("NIXL TCP", "tcp", "tcp"),
    _redis("Redis unix, pipeline", "shm", "SET and GET in pipelines of a batch", False),
    _redis("Redis unix, mget", "shm", "MSET and MGET of a batch", True),
    _nixl("NIXL same host", "shm", "posix"),
    _nixl("NIXL same host, cma", "shm", "cma"),
)


@dataclass(frozen=True, slots=True)
class Started:
    """The peers that run, and why the others do not, by name."""

    fleets: dict[str, Fleet]
    missing: dict[str, str]


@contextlib.contextmanager
def started(
    peers: Sequence[Peer],
    folder: Path,
    logs: Path,
    arena_bytes: int,
    seed: int,
    on_step: Callable[[str], None] = lambda step: None,
) -> Iterator[Started]:
    """Starts what is installed below `folder`; all ends with the block."""
    with contextlib.ExitStack() as cleanup:
        found = Started({}, {})
        for peer in peers:
            on_step(f"starting {peer.name}")
            place = Place(folder, logs, arena_bytes, seed)
            try:
                found.fleets[peer.name] = cleanup.enter_context(peer.start(place))
            except PeerMissingError as error:
                found.missing[peer.name] = str(error)
            except SetupError as error:
                found.missing[peer.name] = f"could not be started: {error}"
        yield found
