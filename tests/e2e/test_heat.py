"""What a real server knows of the heat of its keys, over each transport."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("infinistore._native", reason="the extension is not built: make build")

import infinistore
from infinistore.config import ServerConfig
from infinistore.server.native import NativeServer, make_server, options_for
from infinistore.server.startup import Plan

VALUE_BYTES = 256 * 1024


class Fixture:
    def __init__(self, server: NativeServer, url: str, transport: str) -> None:
        self.server, self.url, self.transport = server, url, transport

    def client(self, namespace: str = "space") -> infinistore.Client:
        return infinistore.connect(self.url, namespace=namespace, transport=self.transport)


@pytest.fixture(params=["tcp", "shm"])
def heat(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fixture]:
    config = ServerConfig(port=0, heat_half_life_s=3600)  # so that nothing cools in a test
    plan = Plan(
        config=config,
        host="127.0.0.1",
        admin_host="127.0.0.1",
        unix_socket=tmp_path / "s",
        pool_bytes=64 << 20,
        workers=2,
        token="",
    )
    server = make_server(options_for(plan, "test"))
    started = server.start()
    yield Fixture(server, f"infinistore://127.0.0.1:{started['port']}", request.param)
    server.stop(0.0)


def write(client: infinistore.Client, keys: list[str], **options: object) -> None:
    cache = np.ones(VALUE_BYTES * len(keys), dtype=np.uint8)
    blocks = [(key, i * VALUE_BYTES) for i, key in enumerate(keys)]
    client.write_cache(cache, blocks, VALUE_BYTES, **options)  # type: ignore[arg-type]
    client.sync()


def read(client: infinistore.Client, key: str, times: int) -> None:
    cache = np.zeros(VALUE_BYTES, dtype=np.uint8)
    for _ in range(times):
        client.read_cache(cache, [(key, 0)], VALUE_BYTES)
        client.sync()


def test_what_is_read_most_is_hottest(heat: Fixture) -> None:
    with heat.client("a") as a, heat.client("b") as b:
        write(a, ["cold", "warm", "hot"])
        write(b, ["hot"])
        read(a, "warm", 2)
        read(a, "hot", 8)
        read(b, "hot", 4)
        rows = heat.server.hottest(10)
        names = [(space, key, size) for space, key, size, _ in rows]
        assert names == [
            (b"a", b"hot", VALUE_BYTES),
            (b"b", b"hot", VALUE_BYTES),
            (b"a", b"warm", VALUE_BYTES),
        ]
        rates = [rate for *_, rate in rows]
        assert rates == pytest.approx([4 * rates[2], 2 * rates[2], rates[2]], rel=0.01)
        served = heat.server.snapshot()["served_bytes_per_s"]
        assert served == pytest.approx(sum(rates), rel=0.01, abs=1)


def test_a_key_written_with_replace_is_not_offered(heat: Fixture) -> None:
    with heat.client() as client:
        write(client, ["replaced"], on_exists="replace")
        write(client, ["kept"])
        read(client, "replaced", 4)
        read(client, "kept", 2)
        assert [key for _, key, *_ in heat.server.hottest(10)] == [b"kept"]


def test_a_walk_lists_all_keys_with_their_heat(heat: Fixture) -> None:
    names = [f"key{i}" for i in range(100)]
    with heat.client() as client:
        write(client, names)
        read(client, "key7", 1)
        seen: dict[bytes, float] = {}
        cursor, pages = 0, 0
        while not pages or cursor:
            cursor, rows = heat.server.list_keys(cursor, 16)
            assert len(rows) <= 16
            seen |= {key: rate for _, key, _, rate in rows}
            pages += 1
    assert sorted(seen) == sorted(name.encode() for name in names)
    assert [key for key, rate in seen.items() if rate > 0] == [b"key7"]
