"""The web page in a real browser: it loads, moves under load, says what the command line says."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import chromium
import infinistore
from chromium import Page
from infinistore.server.pages import PAGES
from infinistore.server.pages import page as page_of
from server_process import ServerProcess

TOKEN = "token-of-the-page"
BLOCK = 64 * 1024
SHOWN = ("keys", "sessions", "hits", "misses", "seals", "evictions", "received_bytes", "sent_bytes")
NUMBERS = (
    "Object.fromEntries([...document.querySelectorAll('#numbers b')]"
    ".map(e => [e.id.slice(7), Number(e.dataset.value)]))"
)

pytestmark = pytest.mark.skipif(chromium.find() is None, reason=chromium.MISSING)


@pytest.fixture(scope="module")
def watched() -> Iterator[ServerProcess]:
    running = ServerProcess(environment={"INFINISTORE_TOKEN": TOKEN})
    try:
        yield running
    finally:
        running.kill()


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    program = chromium.find()
    assert program is not None
    async with chromium.browser(program) as page:
        yield page


async def enter(page: Page, server: ServerProcess) -> None:
    """Opens the page and gives it the token as a person would."""
    await page.open(f"http://{server.admin_address}/")
    await page.until("document.getElementById('ask')?.hidden === false")
    await page.eval(
        f"document.getElementById('token').value = {json.dumps(TOKEN)};"
        "document.querySelector('#ask button').click()"
    )
    await page.until("Number(document.body.dataset.turns) >= 1")


def work(client: infinistore.Client, first: int, blocks: int = 32) -> None:
    cache = np.arange(blocks * BLOCK, dtype=np.uint8)
    pairs = [(f"k{first + i}", i * BLOCK) for i in range(blocks)]
    client.write_cache(cache, pairs, BLOCK)
    client.sync()
    client.read_cache(np.zeros_like(cache), pairs, BLOCK)
    client.sync()
    client.match_prefix([f"none-{first}"])


async def test_numbers_move_under_load_and_equal_the_command_lines(
    page: Page, watched: ServerProcess, connect: Callable[..., infinistore.Client]
) -> None:
    client = connect(watched, token=TOKEN)
    await enter(page, watched)
    before = await page.eval(NUMBERS)
    moving = "Number(document.getElementById('rate-in').dataset.value) > 0"
    for first in range(0, 3200, 32):
        await asyncio.to_thread(work, client, first)
        if await page.eval(moving):
            break
        await asyncio.sleep(0.05)
    await page.until(moving)
    turns = await page.eval("document.body.dataset.turns")
    await page.until(f"Number(document.body.dataset.turns) > {turns} + 1")
    after = await page.eval(NUMBERS)
    assert set(after) == set(SHOWN)
    for name in ("keys", "hits", "misses", "seals", "received_bytes", "sent_bytes"):
        assert after[name] > before[name], name
    told = await asyncio.to_thread(status_of, watched)
    assert after == {name: told["stats"][name] for name in SHOWN}
    shown = await page.eval("Number(document.getElementById('pool-sealed').dataset.value)")
    assert shown == told["stats"]["sealed_bytes"]
    assert await page.eval("document.querySelectorAll('#pool rect').length") == 512
    assert await page.eval("document.getElementById('state').textContent") in ("ok", "populating")
    assert page.problems == []


def status_of(server: ServerProcess) -> dict[str, dict[str, int]]:
    command = [sys.executable, "-m", "infinistore", "status", "--json"]
    command.append(f"--admin={server.admin_address}")
    environment = os.environ | {"INFINISTORE_TOKEN": TOKEN}
    ended = subprocess.run(command, capture_output=True, check=True, timeout=30, env=environment)
    told = json.loads(ended.stdout)
    assert isinstance(told, dict)
    return told


async def test_the_token_stays_in_the_tab(page: Page, watched: ServerProcess) -> None:
    await enter(page, watched)
    assert not any(TOKEN in url for url in page.urls)
    assert all(watched.admin_address in url for url in page.urls if url.startswith("http"))
    assert await page.eval("sessionStorage.length") == 1
    assert await page.eval("localStorage.length + document.cookie.length") == 0
    # A second look at the page asks for it no more; a wrong one is asked for again.
    await page.call("Page.reload")
    await page.until("Number(document.body?.dataset.turns) >= 1")
    await page.eval("sessionStorage.setItem('infinistore.token', 'wrong')")
    await page.call("Page.reload")
    await page.until("document.getElementById('refusal')?.textContent.length > 0")
    assert await page.eval("document.getElementById('page').hidden")
    assert page.problems == []


async def test_problems_are_shown_as_text(
    page: Page, watched: ServerProcess, connect: Callable[..., infinistore.Client]
) -> None:
    namespace = "<img src=x onerror=alert(1)>"
    await asyncio.to_thread(work, connect(watched, token=TOKEN, namespace=namespace), 0)
    host, _, port = watched.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"no frame at all" * 10)
    await reader.read()
    writer.close()
    await enter(page, watched)
    assert "closed a connection" in await page.until(
        "document.querySelector('#problems td:last-child')?.textContent"
    )
    assert await page.eval("document.querySelectorAll('table img').length") == 0
    assert page.problems == []


async def test_light_and_dark(page: Page, watched: ServerProcess) -> None:
    await enter(page, watched)
    backs = []
    for scheme in ("light", "dark"):
        await page.scheme(scheme)
        backs.append(await page.eval("getComputedStyle(document.body).backgroundColor"))
        assert len(await page.screenshot()) > 10_000
    assert backs[0] != backs[1]
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    assert await page.eval(wide)


async def test_a_server_that_goes_away_is_said_so(
    page: Page, start_server: Callable[..., ServerProcess]
) -> None:
    server = start_server()
    await page.open(f"http://{server.admin_address}/")
    await page.until("Number(document.body?.dataset.turns) >= 1")
    server.kill()
    await page.until("document.getElementById('state').textContent === 'no answer'")


# What endpoints that a server may have tell, as the command line reads them.
ANSWERS: dict[str, dict[str, Any]] = {
    "/health": {"status": "ok", "version": "9", "populating": False},
    "/stats": {
        "version": "9", "incarnation": 1, "uptime_s": 60, "workers": 2, "capacity_bytes": 1 << 30,
        "populated_bytes": 1 << 30, "sealed_bytes": 1 << 29, "reserved_bytes": 1,
        "quarantined_bytes": 0, "free_bytes": (1 << 29) - 1, "hits": 3, "misses": 1,
        "misses_new": 1, "misses_evicted": 0,
    },
    "/namespaces": {"count": 1, "namespaces": [
        {"namespace": "llama", "keys": 7, "bytes": 1 << 20, "hits": 3, "misses": 1, "idle_s": 1},
    ]},
    "/hottest": {"hottest": [
        {"namespace": "llama", "key": "a-hot-key", "keys": 4, "bytes_per_s": 1536.2},
    ]},
    "/whatif": {"capacity_bytes": 1 << 30, "asked": 9, "points": [
        {"pool_bytes": 1 << 30, "hit_rate": 0.75}, {"pool_bytes": 1 << 31, "hit_rate": None},
    ]},
    "/cluster": {"node": "n1", "nodes": [
        {"name": "n1", "state": "active", "answers": False, "address": "10.0.0.1:22345",
         "capacity_bytes": 1 << 30, "bytes_per_s": 0.0},
    ]},
    "/tenants": {"tenants": [
        {"tenant": "a", "used_bytes": 1024, "quota_bytes": 2048, "quota_evicted_bytes": 512},
    ]},
    "/log": {"lines": []},
}  # fmt: skip
PARTS = {
    "namespaces": "llama|7|1MiB|75.0 %", "hottest": "llama|a-hot-key|4|1.50KiB/s",
    "whatif": "1GiB|75.0 %|now", "causes": "new|1|100.0 %",
    "nodes": "n1|10.0.0.1:22345|active, does not answer|1GiB|0B/s",
    "tenants": "a|1KiB|2KiB|512B",
}  # fmt: skip


@contextlib.asynccontextmanager
async def told(paths: set[str]) -> AsyncIterator[str]:
    """A server that has these endpoints, made up; its URL."""
    app = web.Application()
    for path in PAGES:
        handler = functools.partial(page_of(path), None)
        app.router.add_get(path, handler)
    answers = ANSWERS | {"/openapi.json": {"paths": {path: {} for path in paths}}}
    for path, answer in answers.items():
        app.router.add_get(path, functools.partial(_answer, answer))
    async with TestServer(app) as made:
        yield str(made.make_url("/"))


async def _answer(answer: dict[str, Any], request: web.Request) -> web.Response:
    return web.json_response(answer)


async def test_each_part_shows_what_its_endpoint_tells(page: Page) -> None:
    async with told(set(ANSWERS)) as url:
        await page.open(url)
        await page.until("Number(document.body?.dataset.turns) >= 1")
        for part, line in PARTS.items():
            row = f"#{part} tr:nth-child(2) td"
            cells = f"[...document.querySelectorAll('{row}')].map(e => e.textContent).join('|')"
            assert await page.eval(cells) == line
        rect = "document.querySelectorAll('#pool .reserved').length"
        assert await page.eval(rect) == 1  # a byte is a cell
        assert page.problems == []


async def test_a_part_that_the_server_does_not_have_is_not_shown(page: Page) -> None:
    async with told({"/health", "/stats", "/log"}) as url:
        await page.open(url)
        await page.until("Number(document.body?.dataset.turns) >= 1")
        hidden = "[...document.querySelectorAll('section[hidden] table')].map(e => e.id)"
        assert set(await page.eval(hidden)) == set(PARTS) - {"causes"}


@pytest.mark.parametrize("path", PAGES)
async def test_every_file_has_a_policy_that_lets_nothing_else_in(
    watched: ServerProcess, path: str
) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{watched.admin_address}{path}") as answer,
    ):
        assert answer.status == 200
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        text = await answer.text()
        assert not any(word in text for word in ("http://", "https://", "eval(", "innerHTML")) or (
            path.endswith(".svg") or "www.w3.org" in text
        )
