"""One server inside of a process that has its own event loop: the original's way to embed it."""

from __future__ import annotations

import asyncio
import atexit
import logging
from typing import Any, Protocol

from infinistore.config import ServerConfig
from infinistore.errors import ConfigError, SetupError
from infinistore.server import unix_socket
from infinistore.server.housekeeping import Watermarks, bytes_to_evict, keep_house
from infinistore.server.native import NativeServer, make_server, options_for
from infinistore.server.startup import plan
from infinistore.server.unix_socket import SocketClaim

logger = logging.getLogger(__name__)

DRAIN_S = 1.0


class Configured(Protocol):
    """Whatever has its settings: `infinistore.ServerConfig`."""

    def verify(self) -> None: ...
    def settings(self) -> ServerConfig: ...


class Embedded:
    """The process's server, and the claim on its socket."""

    def __init__(self, server: NativeServer, claim: SocketClaim | None, port: int) -> None:
        self.server = server
        self.port = port
        self._claim = claim
        self.housekeeping: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Ends it; at the process's end by itself."""
        atexit.unregister(self.stop)
        if self.housekeeping is not None and not self.housekeeping.get_loop().is_closed():
            self.housekeeping.cancel()
        self.server.stop(DRAIN_S)
        if self._claim is not None:
            self._claim.release()


_running: Embedded | None = None


def register_server(loop: asyncio.AbstractEventLoop, config: Configured) -> None:
    """Serves from this process until it ends; `loop`, of any kind, does the housekeeping.

    Raises `SetupError` or `ConfigError`; one process has one server.
    """
    global _running
    if _running is not None:
        raise SetupError(f"Failed to register server: one runs already, on port {_running.port}")
    config.verify()
    settings = config.settings()
    _running = _start(settings)
    marks = Watermarks(settings.evict_start, settings.evict_stop)
    work = keep_house(_running.server, marks, settings.housekeeping_interval_s)
    _running.housekeeping = loop.create_task(work)


def _start(settings: ServerConfig) -> Embedded:
    from infinistore import __version__

    made = plan(settings)
    claim = None
    if made.unix_socket is not None:
        if not settings.unix_socket:
            unix_socket.prepare_folder(made.unix_socket.parent)
        claim = SocketClaim(made.unix_socket)
    try:
        server = make_server(options_for(made, __version__))
        started: Any = server.start()
    except (RuntimeError, OSError) as error:
        if claim is not None:
            claim.release()
        raise SetupError(f"Failed to register server: {error}") from error
    embedded = Embedded(server, claim, int(started["port"]))
    atexit.register(embedded.stop)
    return embedded


def stop_server() -> None:
    """Ends the process's server, if there is one; another may then be registered."""
    global _running
    running, _running = _running, None
    if running is not None:
        running.stop()


def _server() -> NativeServer:
    if _running is None:
        raise SetupError("no server runs in this process; call register_server() first")
    return _running.server


def get_kvmap_len() -> int:
    """How many keys the server in this process has."""
    return _server().key_count(None)


def purge_kv_map() -> None:
    """Erases every key of the server in this process, and gives their memory back."""
    _server().purge(None)


def evict_cache(min_threshold: float, max_threshold: float) -> None:
    """Evicts down to a share of the pool, if it is filled to another. Raises `ConfigError`."""
    if not 0 <= min_threshold < max_threshold <= 1:
        raise ConfigError(
            f"min_threshold {min_threshold} and max_threshold {max_threshold} must be in order, "
            "and in the range of 0 to 1"
        )
    server = _server()
    wanted = bytes_to_evict(server.snapshot(), Watermarks(max_threshold, min_threshold))
    if wanted:
        server.evict(wanted)
