"""Every test of the contract runs on one server, and on three as one cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster_process import ClusterProcess
from server_process import ServerProcess


@pytest.fixture(scope="module", params=["one", "three"])
def server(request: pytest.FixtureRequest) -> Iterator[ServerProcess | ClusterProcess]:
    """A server, or a cluster, for the module's tests; it must end cleanly."""
    running = ServerProcess() if request.param == "one" else ClusterProcess(3)
    try:
        yield running
        assert running.stop() == 0, running.log()
    finally:
        running.kill()


@pytest.fixture
def connect(server: ServerProcess | ClusterProcess, connect: Any) -> Any:
    """The same, for tests that name no server: they, too, run on each."""
    return connect
