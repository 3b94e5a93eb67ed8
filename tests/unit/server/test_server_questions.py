"""What an operator asks over HTTP: bounded, refused with a remedy where it is no question."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer

from fake_native import FakeNative
from infinistore.server.admin import Admin, make_app
from infinistore.server.prometheus import NAMESPACES_SHOWN, namespace_exposition


@pytest.fixture
def native() -> FakeNative:
    return FakeNative()


@pytest.fixture
async def port(native: FakeNative) -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(make_app(Admin(native, "1.2.3")))) as client:
        yield client


async def test_keys_are_explained_as_text_or_as_hex(port: TestClient, native: FakeNative) -> None:
    body = {"namespace": "space", "keys": ["k\u00e9y"], "hex_keys": ["ff00"]}
    answer = await (await port.post("/explain", json=body)).json()
    assert native.calls == [("explain", ("space", ["k\u00e9y".encode(), b"\xff\x00"]))]
    assert answer["answers"] == [{"state": "unknown", "elsewhere": ["a"], "forgotten": False}] * 2


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"{", "body is not"),
        (b"[]", "body is not"),
        (b"[" * 100_000, "body is not"),
        (b'{"keys": 3}', "body is not"),
        (b'{"keys": [3]}', "body is not"),
        (b'{"keys": ["\\ud800"]}', "body is not"),
        (b'{"hex_keys": ["xy"]}', "body is not"),
        (b'{"namespace": 3}', "body is not"),
        (b'{"keys": [""]}', "1 to 255"),
        (json.dumps({"keys": ["x" * 256]}).encode(), "256 bytes"),
        (json.dumps({"keys": ["x"] * 1025}).encode(), "at most 1024"),
    ],
)
async def test_what_is_no_question_is_refused(
    port: TestClient, native: FakeNative, body: bytes, word: str
) -> None:
    answer = await port.post("/explain", data=body)
    assert answer.status == 400
    assert word in (await answer.json())["error"]
    assert native.calls == []


async def test_a_body_without_end_is_not_read(port: TestClient, native: FakeNative) -> None:
    answer = await port.post("/explain", data=io.BytesIO(b" " * (2 << 20)))
    assert answer.status == 413
    assert native.calls == []


async def test_namespaces_come_the_largest_first(port: TestClient) -> None:
    answer = await (await port.get("/namespaces?limit=1")).json()
    assert answer["count"] == 2
    assert [each["namespace"] for each in answer["namespaces"]] == ["b"]
    for wrong in ("0", "-1", "x", "99999999"):
        assert (await port.get("/namespaces", params={"limit": wrong})).status == 400


async def test_what_is_read_most_comes_by_prefix(port: TestClient, native: FakeNative) -> None:
    rows = [(b"a", b"{t}1", 8, 5.0), (b"a", b"alone", 8, 4.0), (b"a", b"{t}2", 8, 2.0),
            (b"b", b"{t}\xff", 8, 1.0)]  # fmt: skip
    native.hottest = lambda count_max: rows  # type: ignore[method-assign]
    answer = await (await port.get("/hottest?limit=2")).json()
    assert answer["hottest"] == [
        {"namespace": "a", "key": "{t}1", "keys": 2, "bytes_per_s": 7.0},
        {"namespace": "a", "key": "alone", "keys": 1, "bytes_per_s": 4.0},
    ]
    assert (await port.get("/hottest?limit=0")).status == 400


async def test_hit_rates_come_by_pool_size(port: TestClient) -> None:
    answer = await (await port.get("/whatif?sizes=4000,16000B")).json()
    assert answer["points"] == [
        {"pool_bytes": 4000, "hit_rate": 0.5},
        {"pool_bytes": 16000, "hit_rate": None},  # more than the sample knows of
    ]
    sizes = [point["pool_bytes"] for point in (await (await port.get("/whatif")).json())["points"]]
    assert sizes[0] == 125
    assert 1000 in sizes
    assert sizes[-1] == 8000
    for wrong in ("", "x", "1,,2", ",".join(["1"] * 65)):
        assert (await port.get("/whatif", params={"sizes": wrong})).status == 400


def test_namespaces_have_a_bounded_number_of_labels() -> None:
    spaces = [
        {"namespace": f"n{i:03}".encode(), "keys": 1, "bytes": i, "hits": 2, "misses": 3}
        for i in range(NAMESPACES_SHOWN + 30)
    ]
    text = namespace_exposition(spaces)
    assert text.count("infinistore_namespace_keys{") == NAMESPACES_SHOWN + 1
    assert 'infinistore_namespace_keys{namespace="n049"} 1\n' in text
    assert 'infinistore_namespace_keys{namespace="(others)"} 30\n' in text
    assert 'namespace="n000"' not in text


def test_a_name_cannot_break_the_text() -> None:
    space = {"namespace": b'a"b\\c\nd\xff', "keys": 1, "bytes": 1, "hits": 0, "misses": 0}
    text = namespace_exposition([space])
    assert r'{namespace="a\"b\\c\nd\\xff"} 1' in text
