"""The commands' view of the admin port: addresses, answers, and what is no InfiniStore."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from infinistore.cli._admin import Admin, find_admin
from infinistore.cli.status import hit_rate, rows
from infinistore.cli.verify import report
from infinistore.errors import AuthError, ConfigError, ConnectError, ProtocolError, StoreError


class Scripted(BaseHTTPRequestHandler):
    """Answers what its server was told to, and remembers the request."""

    def do_GET(self) -> None:
        self.server.seen = (self.path, self.headers.get("Authorization"))  # type: ignore[attr-defined]
        status, body = self.server.answer  # type: ignore[attr-defined]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def scripted() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Scripted)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ask(server: HTTPServer, status: int, body: bytes, token: str = "") -> object:
    server.answer = (status, body)  # type: ignore[attr-defined]
    admin = Admin("127.0.0.1", server.server_port, token)
    return admin.ask("GET", "/keys/count", {"namespace": "a b", "none": None})


def test_an_answer_is_read_and_the_token_shown(scripted: HTTPServer) -> None:
    assert ask(scripted, 200, b'{"count": 3}', "s3cret") == {"count": 3}
    assert scripted.seen == ("/keys/count?namespace=a+b", "Bearer s3cret")  # type: ignore[attr-defined]
    assert ask(scripted, 503, b'{"status": "draining"}') == {"status": "draining"}
    assert scripted.seen[1] is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("status", "body", "error", "word"),
    [
        (401, b"{}", AuthError, "INFINISTORE_TOKEN"),
        (400, b'{"error": "no such thing"}', StoreError, "no such thing"),
        (500, b"[]", StoreError, "refused"),
        (200, b"<html>", ProtocolError, "no InfiniStore"),
        (200, b"\xff", ProtocolError, "no InfiniStore"),
    ],
)
def test_a_refusal_or_a_stranger_is_an_error_of_ours(
    scripted: HTTPServer, status: int, body: bytes, error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        ask(scripted, status, body)


def test_nobody_there_is_a_connect_error_with_the_remedy() -> None:
    with pytest.raises(ConnectError, match="start one with `infinistore`"):
        Admin("127.0.0.1", 1).ask("GET", "/health")


@pytest.mark.parametrize(
    ("address", "environment", "found"),
    [
        (None, {}, "127.0.0.1:18080"),
        (None, {"INFINISTORE_HOST": "0.0.0.0", "INFINISTORE_ADMIN_PORT": "1"}, "127.0.0.1:1"),
        (None, {"INFINISTORE_ADMIN_HOST": "::"}, "[::1]:18080"),
        ("store.example:99", {}, "store.example:99"),
        ("http://[::1]:99/", {}, "[::1]:99"),
    ],
)
def test_the_address_is_given_or_the_servers_own(
    address: str | None,
    environment: dict[str, str],
    found: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(find_admin(address, None)) == found


@pytest.mark.parametrize("address", ["host", ":1", "host:x", "host:70000", ""])
def test_a_malformed_address_is_refused(address: str) -> None:
    if address:
        with pytest.raises(ConfigError, match="HOST:PORT"):
            find_admin(address, None)


def test_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFINISTORE_TOKEN", "s3cret")
    assert find_admin(None, None).token == "s3cret"


def test_status_shows_what_there_is() -> None:
    health = {"status": "ok", "populating": True, "populated_bytes": 1024}
    stats = {"capacity_bytes": 4096, "sealed_bytes": 1024, "keys": 1234, "hits": 3, "misses": 1}
    shown = dict(rows(health, stats))
    assert shown["state"] == "ok, populating (1KiB of 4KiB ready)"
    assert shown["  sealed"] == "1KiB (25.0 %)"
    assert (shown["keys"], shown["hit rate"]) == ("1,234", "75.0 % of 4 keys asked for")
    assert "sessions" not in shown
    assert hit_rate(0, 0) == "nothing asked"


def test_a_verify_says_what_it_saw_and_names_what_it_dropped() -> None:
    admin = Admin("127.0.0.1", 1)
    found = {"values": 1234, "bytes": 4096, "corrupt": 0, "seconds": 2.0, "done": True}
    [line] = report(found, admin, cancelled=False)
    assert line == "127.0.0.1:1: 1,234 values, 4KiB in 2s: 0 corrupt"
    damaged = [{"namespace": "", "key": f"k{n}"} for n in range(30)]
    lines = report({**found, "corrupt": 5000, "damaged": damaged}, admin, cancelled=False)
    assert lines[1] == "  dropped k0"
    assert len(lines) == 22
    assert lines[-1].startswith("  and 4,980 more")
    named = {**found, "corrupt": 1, "damaged": [{"namespace": "tenant", "key": "k"}]}
    assert report(named, admin, cancelled=False)[1] == "  dropped k (namespace tenant)"
    [line] = report({}, admin, cancelled=True)
    assert line.endswith("so far; cancelled")
