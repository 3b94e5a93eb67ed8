"""The router between clients and fake vLLM servers, over real sockets: for its tests."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import aiohttp
from fake_vllm import FakeVllm

from infinistore.router.daemon import make_runner
from infinistore.router.settings import RouterSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

FAST: dict[str, Any] = {
    "port": 0,
    "prefill_timeout_s": 5.0,
    "connect_timeout_s": 1.0,
    "probe_interval_s": 0.05,
    "probe_timeout_s": 0.2,
    "back_off_min_s": 0.1,
    "back_off_max_s": 0.2,
    "drain_s": 0.2,
}
SLOW_PROBES = {"probe_interval_s": 60.0, "back_off_min_s": 60.0, "back_off_max_s": 60.0}


class Stage:
    """Two prefills, two decodes, the router between, and clients of it."""

    def __init__(self) -> None:
        self.prefills = [FakeVllm("p0"), FakeVllm("p1")]
        self.decodes = [FakeVllm("d0"), FakeVllm("d1")]
        self.url = ""
        self.http: aiohttp.ClientSession
        self._runner: web.AppRunner | None = None

    async def open(self, prefills: int = 1, decodes: int = 1, **changes: object) -> None:
        from aiohttp import web

        for fake in (*self.prefills, *self.decodes):
            await fake.start()
        settings = RouterSettings(
            prefill_urls=tuple(fake.url for fake in self.prefills[:prefills]),
            decode_urls=tuple(fake.url for fake in self.decodes[:decodes]),
            **{**FAST, **changes},
        )
        self._runner = make_runner(settings)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20))

    async def close(self) -> None:
        await self.http.close()
        if self._runner is not None:
            await self._runner.cleanup()
        for fake in (*self.prefills, *self.decodes):
            await fake.stop()

    async def complete(self, **body: object) -> tuple[int, dict[str, Any]]:
        request = {"model": "m", "prompt": "once upon", "max_tokens": 8, **body}
        async with self.http.post(f"{self.url}/v1/completions", json=request) as response:
            return response.status, await response.json()

    async def health(self) -> dict[str, Any]:
        async with self.http.get(f"{self.url}/health") as response:
            return {"code": response.status, **await response.json()}

    async def counters(self) -> dict[str, int]:
        async with self.http.get(f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: int(float(value)) for name, value in pairs}


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not come true"
        await asyncio.sleep(0.01)


async def until_up(stage: Stage, role: str, standings: list[str], timeout_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while [row["standing"] for row in (await stage.health())[role]] != standings:
        assert time.monotonic() < deadline_s, f"{role} did not become {standings}"
        await asyncio.sleep(0.02)
