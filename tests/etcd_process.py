"""A real etcd for tests: Debian's etcd-server on a free port, killed and started again at will."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import pytest

START_TIMEOUT_S = 20.0
MISSING = "etcd is not installed; on Debian or Ubuntu, as root: apt-get install etcd-server"


def _text(text: str) -> str:
    """As etcd's JSON has bytes."""
    return base64.b64encode(text.encode()).decode()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class EtcdProcess:
    """One etcd with its data in a folder of its own; it keeps both over `kill` and `start`."""

    def __init__(self) -> None:
        if shutil.which("etcd") is None:
            pytest.skip(MISSING)
        self._folder = tempfile.mkdtemp(prefix="infinistore-etcd-")
        self.port, self._peer_port = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Returns once it answers."""
        address, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peer_port}"
        self.process = subprocess.Popen(
            [
                "etcd",
                f"--data-dir={self._folder}/data",
                f"--listen-client-urls={address}",
                f"--advertise-client-urls={address}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._is_healthy():
            assert self.process.poll() is None, f"etcd ended with {self.process.returncode}"
            assert time.monotonic() < deadline_s, f"etcd does not answer in {START_TIMEOUT_S} s"
            time.sleep(0.02)

    def _is_healthy(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self.port}/health"
            with urllib.request.urlopen(url, timeout=1) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def require_login(self, user: str, password: str) -> None:
        """From now on for good: one user who may use what is below /infinistore/, and root."""
        below = {"key": _text("/infinistore/"), "range_end": _text("/infinistore0")}
        allowed = {"name": "pool", "perm": {"permType": "READWRITE", **below}}
        for call, body in (
            ("user/add", {"name": "root", "password": password + "-root"}),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": user, "password": password}),
            ("role/add", {"name": "pool"}),
            ("role/grant", allowed),
            ("user/grant", {"user": user, "role": "pool"}),
            ("enable", {}),
        ):
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.port}/v3/auth/{call}", json.dumps(body).encode()
            )
            urllib.request.urlopen(request, timeout=START_TIMEOUT_S).close()

    def url(self, cluster: str = "test") -> str:
        return f"infinistore+etcd://127.0.0.1:{self.port}/{cluster}"

    def kill(self) -> None:
        """As kill -9; its data stays."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
