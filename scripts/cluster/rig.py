"""What a proof runs on: a real etcd, nodes and clients as processes of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etcd_process import EtcdProcess
from server_process import ServerProcess

HERE = Path(__file__).resolve().parent
START_S = 20.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: whose, of which group, when it began (monotonic), and how it went."""

    client: int
    group: str
    began_s: float
    took_s: float
    misses: int


class Load:
    """Client processes at work; what they report is gathered as it comes."""

    def __init__(self, url: str, clients: int, *flags: str) -> None:
        self.requests: list[Asked] = []
        self.hits = self.misses = self.wrong = 0
        self.errors: list[Any] = []
        self._ready = threading.Semaphore(0)
        self._processes = [self._start(url, seed, flags) for seed in range(clients)]
        for process in self._processes:
            if not self._ready.acquire(timeout=START_S):
                raise AssertionError(f"a client does not connect (status {process.poll()})")

    def _start(self, url: str, seed: int, flags: tuple[str, ...]) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join((str(HERE.parent), os.environ.get("PYTHONPATH", "")))
        process = subprocess.Popen(
            [sys.executable, "-m", "cluster.client", f"--url={url}", f"--seed={seed}", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": paths},
        )
        threading.Thread(target=self._listen, args=(seed, process), daemon=True).start()
        return process

    def _listen(self, client: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for text in process.stdout:
            line = json.loads(text)
            if "ready" in line:
                self._ready.release()
                continue
            self.requests += [Asked(client, *each) for each in line["requests"]]
            self.hits += line["hits"]
            self.misses += line["misses"]
            self.wrong += line["wrong"]
            self.errors += line["errors"]

    def between(self, begin_s: float, end_s: float) -> list[Asked]:
        """The requests that ended after its begin, and began before its end."""
        return [
            each
            for each in list(self.requests)
            if each.began_s < end_s and each.began_s + each.took_s > begin_s
        ]

    def change_hot_set(self, hot: int) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(b"%d\n" % hot)
            process.stdin.flush()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()


class Rig:
    """Nodes on loopback addresses of their own, named n1, n2 and so on, in one etcd."""

    def __init__(self, *flags: str, pool: str = "256MiB") -> None:
        self.etcd = EtcdProcess()
        self.nodes: dict[str, ServerProcess] = {}
        self._flags = (f"--pool={pool}", *flags)
        self._served: dict[str, int] = {}

    @property
    def url(self) -> str:
        return self.etcd.url("proof")

    def start(self, *names: str) -> None:
        """Returns once all nodes are up and know each other."""
        for name in names:
            self.launch(name)
        self.await_state({name: "up" for name in self.nodes})

    def launch(self, name: str) -> None:
        """Starts a node and does not wait for it to be up."""
        self.nodes[name] = ServerProcess(
            f"--cluster={self.url}",
            f"--node-name={name}",
            f"--host=127.0.0.{10 + int(name[1:])}",
            "--node-ttl=2",
            "--workers=2",
            "--unix-socket=none",
            *self._flags,
        )

    def await_state(self, wanted: dict[str, str], timeout_s: float = 60.0) -> float:
        """Waits until every node sees this; how long that took."""
        began = time.monotonic()
        while not all(self.states(name) == wanted for name in wanted):
            assert time.monotonic() - began < timeout_s, f"no {wanted} in {timeout_s} s"
            time.sleep(0.1)
        return time.monotonic() - began

    def states(self, name: str) -> dict[str, str]:
        return {node["name"]: node["state"] for node in self.look(name)["nodes"]}

    def look(self, name: str | None = None) -> dict[str, Any]:
        """One node's /cluster."""
        answer = self.nodes[name or next(iter(self.nodes))].admin("/cluster")
        assert isinstance(answer, dict)
        return answer

    def kill(self, name: str) -> None:
        self.nodes.pop(name).kill()

    def served(self) -> dict[str, int]:
        """Bytes that each node has given out so far."""
        return {name: int(node.stats()["sent_bytes"]) for name, node in self.nodes.items()}

    def served_in(self, seconds: float, tick: Callable[[], None] = lambda: None) -> dict[str, int]:
        """Bytes that each node gives out in a time from now."""
        before = self.served()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(0.5, left))
            tick()
        after = self.served()
        return {name: after[name] - before.get(name, 0) for name in after}

    def copies(self) -> dict[str, list[str]]:
        """The groups that have copies, by their ids, and the nodes with them."""
        nodes = self.look()["nodes"]
        return {group: names for node in nodes for group, names in node["copies"].items()}

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.etcd.close()
