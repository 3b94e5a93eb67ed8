"""The admin HTTP port over a made-up native server: every route, the token, no web pages."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer

from fake_native import FakeNative
from infinistore.errors import SetupError
from infinistore.server.admin import ROUTES, Admin, listen, make_app, openapi_document
from infinistore.server.scrub import scrub

TOKEN = "s3cret"


@pytest.fixture
def native() -> FakeNative:
    return FakeNative()


@pytest.fixture
async def open_port(native: FakeNative) -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(make_app(Admin(native, "1.2.3", incarnation=77)))) as client:
        yield client


@pytest.fixture
async def guarded(native: FakeNative) -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(make_app(Admin(native, "1.2.3", token=TOKEN)))) as client:
        yield client


async def test_health_tells_state_and_progress(open_port: TestClient, native: FakeNative) -> None:
    native.counters["populated_bytes"] = 250
    answer = await open_port.get("/health")
    body = await answer.json()
    assert answer.status == 200
    assert (body["status"], body["populating"]) == ("ok", True)
    assert (body["populated_bytes"], body["pool_bytes"]) == (250, 1000)
    assert (body["version"], body["incarnation"]) == ("1.2.3", 77)
    native.counters["populated_bytes"] = 1000
    assert (await (await open_port.get("/health")).json())["populating"] is False


async def test_health_is_unavailable_while_draining(native: FakeNative) -> None:
    admin = Admin(native, "1.2.3", draining=True)
    async with TestClient(TestServer(make_app(admin))) as client:
        answer = await client.get("/health")
        assert answer.status == 503
        assert (await answer.json())["status"] == "draining"


async def test_stats_and_metrics_show_the_counters(open_port: TestClient) -> None:
    stats = await (await open_port.get("/stats")).json()
    assert (stats["keys"], stats["hits"], stats["version"]) == (7, 5, "1.2.3")
    metrics = await open_port.get("/metrics")
    assert metrics.content_type == "text/plain"
    assert "infinistore_keys 7\n" in await metrics.text()


async def test_keys_are_counted_and_purged_by_namespace(
    open_port: TestClient, native: FakeNative
) -> None:
    async def count(query: str = "") -> int:
        return int((await (await open_port.get(f"/keys/count{query}")).json())["count"])

    assert await count("?namespace=a") == 3
    answer = await open_port.post("/purge?namespace=a")
    assert await answer.json() == {"status": "ok", "namespace": "a", "num": 3}
    assert await count() == 4
    assert (await (await open_port.post("/purge")).json())["num"] == 4
    assert (await (await open_port.get("/kvmap_len")).json()) == {"len": 0}
    assert native.calls == [("purge", "a"), ("purge", None)]


async def test_a_purge_by_get_is_refused(open_port: TestClient, native: FakeNative) -> None:
    assert (await open_port.get("/purge")).status == 405
    assert native.calls == []


async def test_staged_values_with_keys_that_are_no_text(open_port: TestClient) -> None:
    body = await (await open_port.get("/staged")).json()
    assert body == {
        "staged": [{"key": "k\\xff", "namespace": "a", "value_bytes": 8, "filled": [[0, 4]]}]
    }


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer wrong", "Bearer \u00e9", "Basic czpz"])
async def test_without_the_token_only_the_state_is_told(
    guarded: TestClient, native: FakeNative, header: str | None
) -> None:
    headers = {"Authorization": header} if header else {}
    for route in ROUTES:
        answer = await guarded.request(route.method, route.path, headers=headers)
        assert answer.status == (200 if route.is_open else 401), route.path
        if route.path == "/health":
            assert await answer.json() == {"status": "ok"}
    assert native.calls == []


async def test_with_the_token_everything_answers(guarded: TestClient) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for route in ROUTES:
        answer = await guarded.request(route.method, route.path, headers=headers)
        # A server alone has nowhere to move to.
        assert answer.status == (409 if route.path == "/drain" else 200), route.path
    assert "pool_bytes" in await (await guarded.get("/health", headers=headers)).json()


async def test_a_web_page_cannot_purge(open_port: TestClient, native: FakeNative) -> None:
    answer = await open_port.post("/purge", headers={"Origin": "http://evil.example"})
    assert answer.status == 403
    assert native.calls == []


async def test_the_description_names_every_route(open_port: TestClient) -> None:
    document = await (await open_port.get("/openapi.json")).json()
    assert document == json.loads(json.dumps(openapi_document("1.2.3")))
    described = {
        (method.upper(), path) for path, each in document["paths"].items() for method in each
    }
    assert described == {(route.method, route.path) for route in ROUTES}


async def test_a_taken_port_is_refused_with_the_remedy(native: FakeNative) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=rf"127\.0\.0\.1:{port}.*in use.*--admin-port"):
            await listen(Admin(native, "1"), "127.0.0.1", port)


async def test_the_books_are_checked_on_request(open_port: TestClient, native: FakeNative) -> None:
    assert await (await open_port.get("/integrity")).json() == {"ok": True, "wrong": ""}
    native.wrong = "shard 3: pins do not add up"
    answer = await (await open_port.get("/integrity")).json()
    assert answer == {"ok": False, "wrong": "shard 3: pins do not add up"}


async def test_verify_answers_progress_and_names_what_was_damaged(
    open_port: TestClient, native: FakeNative
) -> None:
    native.damaged = [(b"tenant", b"k\xff")]
    answer = await open_port.post("/verify?rate=100MB/s")
    assert answer.content_type == "application/x-ndjson"
    lines = [json.loads(line) for line in (await answer.text()).splitlines()]
    last = lines[-1]
    assert (last["values"], last["bytes"], last["total_bytes"]) == (7, 600, 600)
    assert (last["corrupt"], last["done"]) == (1, True)
    assert last["damaged"] == [{"namespace": "tenant", "key": "k\\xff"}]
    assert all(not line["done"] for line in lines[:-1])
    assert native.calls == [("scrub", 1_000_000)] * 3  # a hundredth of a second each


async def test_a_rate_that_is_none_is_refused(open_port: TestClient, native: FakeNative) -> None:
    for rate in ("fast", "0", "1KB/s"):
        answer = await open_port.post("/verify", params={"rate": rate})
        assert answer.status == 400
    assert native.calls == []


async def test_one_verifies_at_a_time_and_ends_when_nobody_listens(
    open_port: TestClient, native: FakeNative
) -> None:
    native.scrub_steps = 1_000_000_000
    answer = await open_port.post("/verify")
    await answer.content.readline()
    second = await open_port.post("/verify")
    assert second.status == 409
    answer.close()
    native.scrub_steps = 0
    for _ in range(200):
        if (await open_port.post("/verify")).status == 200:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the first one goes on")


async def test_a_rate_is_kept(native: FakeNative) -> None:
    native.scrub_steps = 30
    began = time.monotonic()
    async for _ in scrub(native, 10_000_000):
        pass
    assert len(native.calls) == 30
    assert time.monotonic() - began >= 29 * 0.01  # 100 KB each: not sooner


async def test_another_sites_page_and_another_name_are_no_way_in(native: FakeNative) -> None:
    local = Admin(native, "1.2.3", is_local=True)
    async with TestClient(TestServer(make_app(local))) as client:

        async def status(path: str, **headers: str) -> int:
            shown = {name.replace("_", "-"): value for name, value in headers.items()}
            return (await client.get(path, headers=shown)).status

        assert await status("/stats") == 200
        assert await status("/stats", Host="localhost:18080") == 200
        assert await status("/stats", Host="[::1]:18080") == 200
        assert await status("/stats", Sec_Fetch_Site="same-origin") == 200
        assert await status("/stats", Host="rebound.example:18080") == 403
        assert await status("/stats", Sec_Fetch_Site="cross-site") == 403
        assert await status("/health", Host="rebound.example") == 200  # it tells nothing
    wide = Admin(native, "1.2.3", token=TOKEN)
    async with TestClient(TestServer(make_app(wide))) as client:
        headers = {"Host": "infinistore.example", "Authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/stats", headers=headers)).status == 200


async def test_the_log_is_of_core_and_management_in_order(native: FakeNative) -> None:
    admin = Admin(native, "1.2.3")
    logger = logging.Logger("of this test")
    logger.addHandler(admin.log)
    logger.info("no problem")
    logger.warning("of %s", "the management")
    async with TestClient(TestServer(make_app(admin))) as client:
        lines = (await (await client.get("/log")).json())["lines"]
    assert [line["text"] for line in lines] == ["of the core", "of the management"]
    assert {line["level"] for line in lines} == {"WARNING"}
