"""A headless Chromium, driven over its own debugging protocol: no driver, no further package."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium here; as root on Debian or Ubuntu: apt-get install chromium"
START_TIMEOUT_S = 30
ANSWER_TIMEOUT_S = 20


def find() -> str | None:
    """The browser's program; CHROMIUM names another."""
    named = os.environ.get("CHROMIUM", "")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page of a running browser. `problems` gathers what its console would show in red."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.problems: list[str] = []
        self.urls: list[str] = []  # of all that it asked for
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def listen(self) -> None:
        async for message in self._socket:
            event = message.json()
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
            else:
                self._note(event.get("method", ""), event.get("params", {}))

    def _note(self, method: str, details: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(details["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning"):
            self.problems.append(str(details["args"]))
        elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.problems.append(str(details["entry"]))
        elif method == "Network.requestWillBeSent":
            self.urls.append(details["request"]["url"])

    async def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": arguments})
        answer = await asyncio.wait_for(self._answers[number], ANSWER_TIMEOUT_S)
        assert "error" not in answer, answer["error"]
        result = answer["result"]
        assert isinstance(result, dict)
        return result

    async def open(self, url: str) -> None:
        for domain in ("Runtime", "Log", "Network", "Page"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)

    async def eval(self, expression: str) -> Any:
        """The JSON value of an expression in the page."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str, timeout_s: float = 20) -> Any:
        """The expression's value once it is true."""
        deadline = time.monotonic() + timeout_s
        while True:
            value = await self.eval(expression)
            if value:
                return value
            assert time.monotonic() < deadline, f"never true: {expression}"
            await asyncio.sleep(0.05)

    async def scheme(self, name: str) -> None:
        """Light or dark, as the system would say."""
        feature = {"name": "prefers-color-scheme", "value": name}
        await self.call("Emulation.setEmulatedMedia", features=[feature])

    async def screenshot(self, width: int = 1200, height: int = 1000) -> bytes:
        """A PNG."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        shot = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(shot["data"])


@contextlib.asynccontextmanager
async def browser(program: str) -> AsyncIterator[Page]:
    """Starts one with a profile of its own, which is gone afterwards."""
    profile = Path(tempfile.mkdtemp(prefix="infinistore-chromium-"))
    command = [program, "--headless=new", f"--user-data-dir={profile}", "--remote-debugging-port=0"]
    command += ["--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "about:blank"]
    command += ["--disable-background-networking", "--disable-component-update", "--no-pings"]
    if os.geteuid() == 0:  # its sandbox refuses root
        command.append("--no-sandbox")
    process = _start(command, profile)
    try:
        port = await _port(profile / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                targets = await answer.json()
            url = next(each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page")
            async with session.ws_connect(url, max_msg_size=1 << 26) as socket:
                page = Page(socket)
                listener = asyncio.ensure_future(page.listen())
                try:
                    yield page
                finally:
                    listener.cancel()
                    await asyncio.gather(listener, return_exceptions=True)
    finally:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _remove(profile)


def _start(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """In a process group of its own, since its helpers must end with it; its files lie there."""
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(folder)},
        start_new_session=True,
    )


def _remove(folder: Path) -> None:
    """Its helpers write there until they have ended."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        assert time.monotonic() < deadline, f"{folder} cannot be removed"
        time.sleep(0.05)


def _written_port(file: Path) -> int:
    lines = file.read_text().splitlines() if file.exists() else []
    return int(lines[0]) if len(lines) > 1 else 0


async def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"Chromium ended with {process.returncode}"
        if port := _written_port(file):
            return port
        await asyncio.sleep(0.05)
    raise AssertionError(f"Chromium did not open its port in {START_TIMEOUT_S} s")
