"""A real server process for tests: started on free ports, known by its readiness line."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

READY = re.compile(
    r"infinistore ready data=(?P<data>\S+) admin=(?P<admin>\S+) "
    r"unix=(?P<unix>\S*) pool=(?P<pool>\d+)"
)
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0


class ServerProcess:
    """`python -m infinistore.server` with `flags`; ended by stop(), or by kill() as in kill -9."""

    def __init__(self, *flags: str, environment: dict[str, str] | None = None) -> None:
        # Not pytest's tmp_path: a unix socket's path has to fit 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="infinistore-"))
        self._log_path = self._folder / "server.log"
        self._last_log = ""
        defaults = {
            "--host": "127.0.0.1",
            "--port": "0",
            "--admin-port": "0",
            "--pool": "64MiB",
            "--unix-socket": str(self._folder / "socket"),
        }
        given = {flag.split("=")[0] for flag in flags}
        self.speaks_tls = "--tls-cert-file" in given
        command = [sys.executable, "-m", "infinistore.server", *flags]
        for flag, value in defaults.items():
            if flag not in given:
                command.append(f"{flag}={value}")
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | (environment or {}),
            )
        try:
            ready = self._read_ready_line()
        except BaseException:
            self.kill()
            raise
        self.address = ready["data"]
        self.admin_address = ready["admin"]
        self.unix_path = ready["unix"]
        self.pool_bytes = int(ready["pool"])

    def _read_ready_line(self) -> re.Match[str]:
        assert self.process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        text = b""
        while b"\n" not in text:
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"no readiness line in {START_TIMEOUT_S} s:\n{self.log()}")
            if select.select([self.process.stdout], [], [], left)[0]:
                chunk = os.read(self.process.stdout.fileno(), 4096)
                if not chunk:
                    status = self.process.wait()
                    raise AssertionError(f"the server ended with {status}:\n{self.log()}")
                text += chunk
        ready = READY.fullmatch(text.decode().strip())
        assert ready, f"not a readiness line: {text!r}"
        return ready

    @property
    def url(self) -> str:
        """What connect() takes."""
        return f"{'infinistores' if self.speaks_tls else 'infinistore'}://{self.address}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        """What it wrote to stderr so far, or until its end."""
        if self._log_path.exists():
            self._last_log = self._log_path.read_text(errors="replace")
        return self._last_log

    def admin(self, path: str, method: str = "GET") -> Any:
        """The JSON that the admin port answers, or the text if it is none."""
        scheme, trust = "http", None
        if self.speaks_tls:  # whose certificate it is, is no matter of this
            scheme, trust = "https", ssl._create_unverified_context()
        request = urllib.request.Request(f"{scheme}://{self.admin_address}{path}", method=method)
        with urllib.request.urlopen(request, timeout=5, context=trust) as answer:
            body = answer.read().decode()
        return json.loads(body) if "json" in answer.headers["Content-Type"] else body

    def stats(self) -> dict[str, Any]:
        """The counters of the admin port."""
        stats = self.admin("/stats")
        assert isinstance(stats, dict)
        return stats

    def stop(self) -> int:
        """SIGTERM; the exit status. Fails if the server does not end in time."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"SIGTERM ignored for {STOP_TIMEOUT_S} s:\n{self.log()}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL if it runs still; removes its files but not what `log()` says. Harmless twice."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log()
        shutil.rmtree(self._folder, ignore_errors=True)
