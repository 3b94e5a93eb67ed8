"""A cluster's nodes as native servers in this process: they start and end in milliseconds."""

from __future__ import annotations

import socket
from typing import Any

from infinistore import _native
from infinistore.server.native import ServerOptions
from waiting import until


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class InProcessNode:
    """One node, which keeps its address over its starts."""

    def __init__(self, pool_bytes: int = 8 << 20) -> None:
        self._pool_bytes = pool_bytes
        self._port = _free_port()
        self.native: Any = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """What connect() takes."""
        return f"infinistore://{self.address}"

    def stats(self) -> dict[str, Any]:
        """Its counters."""
        return dict(self.native.snapshot())

    @property
    def is_running(self) -> bool:
        return self.native is not None

    def start(self) -> None:
        """Empty, as a process that begins."""
        options = ServerOptions(
            host="127.0.0.1",
            port=self._port,
            unix_socket="",
            pool_bytes=self._pool_bytes,
            huge_pages="off",
            workers=1,
            rdma="off",
            rdma_device="",
            token="",
            read_token="",
            tenants=[],
            tls_cert_file="",
            tls_key_file="",
            eviction="lru",
            stage_timeout_s=30.0,
            stage_share=0.5,
            lease_max_s=300.0,
            sessions_max=64,
            heat_half_life_s=1.0,
            log_level="info",
            log_format="text",
            version="test",
            without_fencing=False,
        )
        self.native = _native.Server(options)
        self.native.start()
        # Until its memory is ready it refuses writes.
        until(lambda: self.native.snapshot()["populated_bytes"] == self._pool_bytes)

    def kill(self) -> None:
        """Ends every connection at once; what it held is gone."""
        if self.native is not None:
            self.native.stop(0.0)
            self.native = None


class InProcessCluster:
    """Some nodes under a static list."""

    def __init__(self, count: int = 3) -> None:
        self.nodes = [InProcessNode() for _ in range(count)]

    @property
    def servers(self) -> list[InProcessNode]:
        """The nodes, as ClusterProcess names them."""
        return self.nodes

    @property
    def url(self) -> str:
        """What connect() takes."""
        return "infinistore://" + ",".join(node.address for node in self.nodes)

    def node(self, name: str) -> InProcessNode:
        """The node of that name, which is its address."""
        return next(node for node in self.nodes if node.address == name)

    def stats(self) -> dict[str, Any]:
        """The sums of their counters."""
        sums: dict[str, Any] = {}
        for node in self.nodes:
            for name, value in node.stats().items():
                sums[name] = sums.get(name, 0) + value
        return sums

    def kill(self) -> None:
        """Ends them all."""
        for node in self.nodes:
            node.kill()
