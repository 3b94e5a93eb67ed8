"""Fixtures for every test: a server process, and clients of it that are closed afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from fake_driver import LIBRARY
from figures import record_figure
from server_process import ServerProcess

__all__ = ["record_figure"]  # a fixture for every test, too

if TYPE_CHECKING:
    from infinistore import Client

# The product loads CUDA's driver once in a process: all tests see the double, whatever this machine
# has, unless whoever starts them names another.
os.environ.setdefault("INFINISTORE_CUDA_LIBRARY", str(LIBRARY))

# A shell's background job ignores Ctrl-C, and so would every process that a test sends it to.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """One server for the module's tests, which stay apart by namespaces; it must end cleanly."""
    running = ServerProcess()
    try:
        yield running
        assert running.stop() == 0, running.log()
    finally:
        running.kill()


@pytest.fixture
def start_server() -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers with flags of the test's own (`start_server("--pool=1MiB")`)."""
    started: list[ServerProcess] = []

    def start(*flags: str, environment: dict[str, str] | None = None) -> ServerProcess:
        started.append(ServerProcess(*flags, environment=environment))
        return started[-1]

    yield start
    for running in started:
        running.kill()


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Client]]:
    """Connects to `server`, or to the one given: `connect(transport="tcp")`, `connect(other)`.

    The namespace is the test's own unless named, so that no test sees another's keys.
    """
    import infinistore

    opened: list[Client] = []

    def open_client(to: ServerProcess | str | None = None, **settings: Any) -> Client:
        target = request.getfixturevalue("server") if to is None else to
        url = target if isinstance(target, str) else target.url
        settings.setdefault("namespace", request.node.nodeid[-200:])
        opened.append(infinistore.connect(url, **settings))
        return opened[-1]

    yield open_client
    for client in opened:
        client.close()
