"""A tenant's token opens its own namespaces: of others nothing is read, told, ended or counted."""

from __future__ import annotations

import json
import re
import struct
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import infinistore
import wire_client as wire
from infinistore.cli import group
from server_process import ServerProcess
from wire_client import WireClient

FILE = """
[a]
token = "token-of-a"
quota = "1MiB"
admin = true

[b]
token = "token-of-b"
admin = true

[c]
token = "token-of-c"
"""
ROOT, A, B, C = "token-of-all", "token-of-a", "token-of-b", "token-of-c"
BLOCK = 4096


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("tenants") / "tenants.toml"
    path.write_text(FILE)
    path.chmod(0o600)
    running = ServerProcess(
        f"--tenants-file={path}", "--log-level=debug", environment={"INFINISTORE_TOKEN": ROOT}
    )
    try:
        yield running
        assert running.stop() == 0
        assert "infinistore" in running.log()
        assert not any(token in running.log() for token in (ROOT, A, B, C))
    finally:
        running.kill()


@pytest.fixture(autouse=True)
def _emptied(request: pytest.FixtureRequest) -> None:
    ask(request.getfixturevalue("shared"), "POST", "/purge", ROOT)


def ask(server: ServerProcess, method: str, path: str, token: str) -> Any:
    """The JSON answer, or the number of a refusal."""
    request = urllib.request.Request(f"http://{server.admin_address}{path}", method=method)
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code


def text(server: ServerProcess, path: str, token: str) -> str:
    request = urllib.request.Request(f"http://{server.admin_address}{path}")
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


def told_by(command: str, server: ServerProcess, token: str, as_json: bool = True) -> Any:
    """The command's JSON; else the words of each line, between bars."""
    words = [command, "--admin", server.admin_address, *(["--json"] if as_json else [])]
    done = CliRunner().invoke(group, words, env={"INFINISTORE_TOKEN": token})
    assert done.exit_code == 0, done.output
    if as_json:
        return json.loads(done.stdout)
    return "\n".join(
        f"| {' | '.join(re.split(r' {2,}', line))} |" for line in done.output.split("\n")
    )


def write(client: infinistore.Client, keys: list[str], fill: int = 1) -> None:
    cache = np.full(BLOCK, fill, dtype=np.uint8)
    client.write_cache(cache, [(key, 0) for key in keys], BLOCK)
    client.sync()


def test_one_name_is_two_namespaces(
    shared: ServerProcess, connect: Callable[..., infinistore.Client]
) -> None:
    a = connect(shared, token=A, namespace="x")
    b = connect(shared, token=B, namespace="x")
    write(a, ["k"], fill=1)
    assert b.exists(["k"]) == [False]
    assert b.match_prefix(["k"]) == 0
    write(b, ["k"], fill=2)
    for client, fill in ((a, 1), (b, 2)):
        into = np.zeros(BLOCK, dtype=np.uint8)
        client.read_cache(into, [("k", 0)], BLOCK)
        client.sync()
        assert (into == fill).all()
    assert b.delete(["k"]) == 1
    assert a.exists(["k"]) == [True]
    assert connect(shared, token=ROOT, namespace="a/x").exists(["k"]) == [True]


def test_no_namespace_leads_out(
    shared: ServerProcess, connect: Callable[..., infinistore.Client]
) -> None:
    write(connect(shared, token=A, namespace="x"), ["k"])
    for asked in ("a/x", "/a/x", "../a/x", "x", "a"):
        assert connect(shared, token=B, namespace=asked).exists(["k"]) == [False]


def test_tenants_use_tcp_and_the_pool_is_not_handed_to_them(
    shared: ServerProcess, connect: Callable[..., infinistore.Client]
) -> None:
    assert connect(shared, token=A).transport == "tcp"
    assert connect(shared, token=ROOT).transport == "shm"
    with WireClient(shared.address, token=ROOT.encode()) as root:
        nonce = root.nonce
    with WireClient(shared.unix_path, greet=False) as tenant:
        answer = tenant.call(wire.HELLO, wire.hello(token=A.encode(), nonce=nonce))
        assert answer.error[0] == wire.UNAUTHORIZED
        assert tenant.fds == []
    with pytest.raises(infinistore.InfiniStoreError):
        infinistore.connect(shared.url, token=A, transport="shm")


def test_a_lease_is_out_of_reach(shared: ServerProcess) -> None:
    with (
        WireClient(shared.address, token=A.encode(), space=b"x") as a,
        WireClient(shared.address, token=B.encode(), space=b"x") as b,
    ):
        assert a.put_value(b"k", b"v" * 100) == [wire.OK]
        matched = a.call(wire.MATCH, struct.pack("<II", 10_000, 1) + wire.key_list([b"k"]))
        blocks, _, lease = struct.unpack("<IIQ", matched.body)
        assert blocks == 1
        for lease_ms in (0, 10_000):
            body = struct.pack("<IIQ", lease_ms, 1, lease)
            assert b.call(wire.LEASE, body).outcomes == [wire.LEASE_EXPIRED]
        assert a.call(wire.LEASE, struct.pack("<IIQ", 0, 1, lease)).outcomes == [wire.OK]


def test_a_full_quota_drives_out_its_owners_oldest_and_nobody_elses(
    shared: ServerProcess, connect: Callable[..., infinistore.Client]
) -> None:
    a, b = connect(shared, token=A, namespace="x"), connect(shared, token=B)
    other = connect(shared, token=A, namespace="y")
    before = a.stats()["quota_evictions"]
    fits = (1 << 20) // BLOCK
    write(b, [f"k{i}" for i in range(fits + 1)])
    for i in range(fits):
        write(a, [f"k{i}"])
    assert a.exists(["k0", "k1", "k2"]) == [True] * 3
    into = np.zeros(BLOCK, dtype=np.uint8)
    a.read_cache(into, [("k0", 0)], BLOCK)
    a.sync()
    write(other, ["more"])
    write(other, ["still more"])
    assert a.exists(["k0", "k1", "k2", "k3"]) == [True, False, False, True]
    assert all(b.exists([f"k{i}" for i in range(fits + 1)]))
    assert a.stats()["used_bytes"] == a.stats()["quota_bytes"] == 1 << 20
    assert a.stats()["quota_evictions"] == before + 2
    told = {name for name in a.stats() if not name.startswith("client_")}
    assert told == {"quota_bytes", "used_bytes", "quota_evictions", "quota_evicted_bytes"}
    row = ask(shared, "GET", "/tenants", A)["tenants"][0]
    assert row == {"tenant": "a"} | {name: a.stats()[name] for name in told}
    metrics = text(shared, "/metrics", ROOT)
    for name in told:
        suffix = "" if name in ("quota_bytes", "used_bytes") else "_total"
        assert f'infinistore_tenant_{name}{suffix}{{tenant="a"}} {row[name]}\n' in metrics
    assert told_by("tenants", shared, A) == {"tenants": [row]}
    assert "| 100.0 % |" in told_by("tenants", shared, ROOT, as_json=False)
    command = ["explain", "--admin", shared.admin_address, "--namespace", "a/x", "--json"]
    asked = CliRunner().invoke(group, [*command, "--key", "k1"], env={"INFINISTORE_TOKEN": ROOT})
    (story,) = json.loads(asked.stdout)["keys"]
    assert (story["state"], story["reason"]) == ("evicted", "quota")


def test_what_no_quota_can_hold_is_refused_and_drives_nothing_out(
    shared: ServerProcess, connect: Callable[..., infinistore.Client]
) -> None:
    a = connect(shared, token=A)
    fits = (1 << 20) // BLOCK
    write(a, ["kept"])
    large = np.ones((1 << 20) + 1, dtype=np.uint8)
    a.write_cache(large, [("large", 0)], large.size)
    with pytest.raises(infinistore.TooLargeError):
        a.sync()
    assert a.exists(["kept"]) == [True]
    lookup = a.lookup(["kept"], lease_s=30)
    assert lookup.wait() == 1
    large = np.ones(1 << 20, dtype=np.uint8)
    a.write_cache(large, [("all", 0)], large.size)
    with pytest.raises(infinistore.QuotaError, match="quota") as refused:
        a.sync()
    assert refused.value.retryable
    a.release(lookup.lease_ids)
    write(a, [f"k{i}" for i in range(fits)])
    a.write_cache(large, [("all", 0)], large.size)
    a.sync()
    assert a.exists(["kept", "k0", "all"]) == [False, False, True]


def test_the_admin_port_answers_a_tenant_about_its_own(
    shared: ServerProcess, connect: Callable[..., infinistore.Client]
) -> None:
    write(connect(shared, token=A, namespace="x"), ["1", "2"])
    write(connect(shared, token=A, namespace="y"), ["1"])
    write(connect(shared, token=B, namespace="x"), ["1"])
    with WireClient(shared.address, token=A.encode(), space=b"x") as writer:
        writer.call(wire.PUT, wire.put([b"staged"], 100, size=50))
        staged = ask(shared, "GET", "/staged", A)["staged"]
        assert [(each["namespace"], each["key"]) for each in staged] == [("x", "staged")]
        assert ask(shared, "GET", "/staged", B)["staged"] == []
        assert [each["namespace"] for each in ask(shared, "GET", "/staged", ROOT)["staged"]] == [
            "a/x"
        ]
    assert ask(shared, "GET", "/keys/count", A)["count"] == 3
    assert ask(shared, "GET", "/keys/count?namespace=x", A)["count"] == 2
    assert ask(shared, "GET", "/keys/count?namespace=a/x", B)["count"] == 0
    assert [each["tenant"] for each in ask(shared, "GET", "/tenants", A)["tenants"]] == ["a"]
    assert len(ask(shared, "GET", "/tenants", ROOT)["tenants"]) == 3
    assert ask(shared, "POST", "/purge?namespace=x", B)["num"] == 1
    assert ask(shared, "POST", "/purge", B)["num"] == 0
    assert ask(shared, "GET", "/keys/count", A)["count"] == 3
    assert ask(shared, "POST", "/purge", A)["num"] == 3


def test_what_is_about_the_whole_server_is_the_operators(shared: ServerProcess) -> None:
    from infinistore.server.admin import ROUTES

    for route in ROUTES:
        if route.is_open:
            continue
        assert ask(shared, route.method, route.path, C) == 403  # a token for data only
        if not route.for_tenants:
            assert ask(shared, route.method, route.path, A) == 403
    assert set(ask(shared, "GET", "/health", A)) == {"status"}
    assert ask(shared, "GET", "/stats", ROOT)["workers"] >= 1


def test_tenants_alone_close_a_server(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(FILE)
    path.chmod(0o600)
    server = start_server("--host=0.0.0.0", "--admin-host=127.0.0.1", f"--tenants-file={path}")
    port = server.address.rpartition(":")[2]
    with pytest.raises(infinistore.AuthError):
        infinistore.connect(f"infinistore://127.0.0.1:{port}")
    assert ask(server, "GET", "/stats", "") == 401
