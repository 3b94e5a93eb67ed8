"""Every test of the contract runs on one server, on three as one cluster, and on one by TLS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from certificates import HAS_OPENSSL, Authority, flags_of
from cluster_process import ClusterProcess
from server_process import ServerProcess


@pytest.fixture(scope="module", params=["one", "three", "tls"] if HAS_OPENSSL else ["one", "three"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess | ClusterProcess]:
    """A server, or a cluster, for the module's tests; it must end cleanly."""
    with pytest.MonkeyPatch.context() as patch:
        running: ServerProcess | ClusterProcess
        if request.param == "tls":
            authority = Authority(tmp_path_factory.mktemp("certificates"))
            patch.setenv("INFINISTORE_TLS_CA_FILE", str(authority.chain))
            running = ServerProcess(*flags_of(authority.sign("server")))
        else:
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
