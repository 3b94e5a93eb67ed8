"""Several real server processes as one cluster, with the interface of one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from server_process import ServerProcess


class ClusterProcess:
    """`count` servers, named by a static list; ended as one."""

    def __init__(self, count: int = 3, *flags: str) -> None:
        self.servers: list[ServerProcess] = []

        def start(_: int) -> None:
            self.servers.append(ServerProcess(*flags))

        try:
            with ThreadPoolExecutor(count) as starts:
                list(starts.map(start, range(count)))
        except BaseException:
            self.kill()
            raise

    @property
    def url(self) -> str:
        """What connect() takes."""
        return "infinistore://" + ",".join(server.address for server in self.servers)

    @property
    def pool_bytes(self) -> int:
        """Of all."""
        return sum(server.pool_bytes for server in self.servers)

    def stats(self) -> dict[str, Any]:
        """The sums of the counters of the admin ports."""
        sums: dict[str, Any] = {}
        for server in self.servers:
            for name, value in server.stats().items():
                if isinstance(value, (int, float)):
                    sums[name] = sums.get(name, 0) + value
        return sums

    def log(self) -> str:
        """What they wrote to stderr so far."""
        return "\n".join(server.log() for server in self.servers)

    def stop(self) -> int:
        """SIGTERM to each; the worst exit status."""
        return max(server.stop() for server in self.servers)

    def kill(self) -> None:
        """SIGKILL to each that runs still."""
        for server in self.servers:
            server.kill()
