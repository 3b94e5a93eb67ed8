"""Nodes of a cluster as processes: a real etcd, killed and started again, and a static list."""

from __future__ import annotations

import contextlib
import json
import threading
import urllib.error
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from click.testing import CliRunner

import infinistore
from etcd_process import EtcdProcess, free_port
from infinistore.cli import group
from infinistore.cluster.members import source as etcd_source
from infinistore.cluster.members.source import EtcdSource
from infinistore.cluster.node.settling import groups_of
from infinistore.cluster.nodes import Node
from infinistore.cluster.placement import Placement
from infinistore.errors import ConnectError
from server_process import ServerProcess
from waiting import until

TTL_S = 2
StartNode = Callable[..., ServerProcess]


@pytest.fixture
def etcd() -> Iterator[EtcdProcess]:
    with contextlib.closing(EtcdProcess()) as process:
        yield process


@pytest.fixture
def node(etcd: EtcdProcess) -> Iterator[StartNode]:
    """Starts nodes of one cluster by their names."""
    with contextlib.ExitStack() as cleanup:

        def start(name: str, *flags: str) -> ServerProcess:
            server = ServerProcess(
                f"--cluster={etcd.url()}", f"--node-name={name}", f"--node-ttl={TTL_S}", *flags
            )
            cleanup.callback(server.kill)
            return server

        yield start


def names(server: ServerProcess) -> list[str]:
    return [node["name"] for node in server.admin("/cluster")["nodes"]]


def states(server: ServerProcess) -> dict[str, str]:
    return {node["name"]: node["state"] for node in server.admin("/cluster")["nodes"]}


def test_nodes_come_and_go_in_etcd(node: StartNode) -> None:
    first, second = node("a"), node("b")
    until(lambda: names(first) == names(second) == ["a", "b"])
    until(lambda: all(row["answers"] for row in first.admin("/cluster")["nodes"]))
    assert "infinistore_cluster_nodes 2" in first.admin("/metrics")
    second.kill()
    until(lambda: names(first) == ["a"], timeout_s=5 * TTL_S)
    third = node("b")
    until(lambda: names(first) == ["a", "b"])
    assert third.stop() == 0
    until(lambda: names(first) == ["a"], timeout_s=TTL_S)  # it left: nothing had to expire


def test_what_is_known_works_on_while_etcd_is_away(etcd: EtcdProcess, node: StartNode) -> None:
    first, second = node("a"), node("b")
    until(lambda: names(first) == names(second) == ["a", "b"])
    etcd.kill()
    until(lambda: not first.admin("/health")["cluster"]["connected"])
    assert "infinistore_cluster_connected 0" in first.admin("/metrics")
    late = node("c")  # serves, but nobody knows
    until(lambda: late.admin("/health")["cluster"]["problem"])
    until(lambda: first.admin("/health")["cluster"]["problem"])
    assert names(first) == names(second) == ["a", "b"]
    etcd.start()
    for server in (first, second, late):
        until(lambda server=server: names(server) == ["a", "b", "c"], timeout_s=5 * TTL_S)
        until(lambda server=server: server.admin("/health")["cluster"]["problem"] == "")


def values_at(server: ServerProcess, keys: list[str]) -> set[str]:
    with infinistore.connect(server.url, "kv") as client:
        return {key for key, is_there in zip(keys, client.exists(keys), strict=True) if is_there}


def test_a_join_takes_its_share_and_a_drain_leaves_it_to_the_others(node: StartNode) -> None:
    servers = {name: node(name) for name in ("a", "b")}
    until(lambda: states(servers["a"]) == {"a": "up", "b": "up"})
    keys = [f"{{chain-{i}}}block" for i in range(300)]
    page = np.arange(4096, dtype=np.uint8)
    placement = Placement([Node(name, name, server.pool_bytes) for name, server in servers.items()])
    owners = placement.first(groups_of([key.encode() for key in keys]))[:, 0]
    for index, server in enumerate(servers.values()):
        own = [(key, 0) for key, owner in zip(keys, owners, strict=True) if owner == index]
        with infinistore.connect(server.url, "kv") as client:
            client.write_cache(page, own, len(page))

    servers["c"] = node("c")
    until(lambda: states(servers["a"]) == {"a": "up", "b": "up", "c": "up"}, timeout_s=20)
    three = Placement([Node(name, name, s.pool_bytes) for name, s in servers.items()])
    after = three.first(groups_of([key.encode() for key in keys]))[:, 0]
    share = {key for key, owner in zip(keys, after, strict=True) if owner == 2}
    assert 60 < len(share) < 140
    assert values_at(servers["c"], keys) == share

    answer = servers["a"].admin("/drain?node=b", method="POST")
    assert answer == {"status": "leaving", "node": "b"}
    assert servers["b"].process.wait(20) == 0
    left = values_at(servers["a"], keys) | values_at(servers["c"], keys)
    assert left == set(keys)
    until(lambda: states(servers["a"]) == {"a": "up", "c": "up"})
    until(lambda: servers["a"].admin("/cluster")["last_walk"]["failures"] == [])


def test_a_drain_needs_somewhere_to_go(node: StartNode) -> None:
    alone = node("a")
    until(lambda: states(alone) == {"a": "up"})
    for query, says in (("", "no other node"), ("?node=x", "no node is named")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            alone.admin(f"/drain{query}", method="POST")
        assert says in refused.value.read().decode()


def test_a_client_knows_the_nodes_from_etcd(
    etcd: EtcdProcess, node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_source, "FIRST_VIEW_S", 0.5)
    with pytest.raises(ConnectError, match="no nodes"):
        EtcdSource(etcd.url())
    monkeypatch.undo()
    monkeypatch.setattr(etcd_source, "READER_TTL_S", 1.0)
    first = node("a")
    with contextlib.closing(EtcdSource(etcd.url())) as source:
        (known,) = source.current().nodes
        assert (known.name, known.address) == ("a", first.address)
        second = node("b")
        until(lambda: len(source.current().nodes) == 2)
        etcd.kill()
        until(lambda: not source.is_connected)
        assert len(source.current().nodes) == 2
        etcd.start()
        second.stop()
        until(lambda: len(source.current().nodes) == 1, timeout_s=5 * TTL_S)
    assert not [t for t in threading.enumerate() if t.name == "infinistore-etcd"]


def test_a_static_list_needs_no_etcd() -> None:
    ports = [free_port(), free_port()]
    listed = "infinistore://" + ",".join(f"127.0.0.1:{port}" for port in ports)
    with contextlib.ExitStack() as cleanup:
        servers = []
        for port in ports:
            servers.append(ServerProcess(f"--cluster={listed}", f"--port={port}"))
            cleanup.callback(servers[-1].kill)
        until(lambda: all(row["answers"] for row in servers[0].admin("/cluster")["nodes"]))
        assert servers[1].admin("/health")["cluster"]["connected"]
        with pytest.raises(AssertionError, match="not in the list"):
            ServerProcess(f"--cluster={listed}", "--port=0")


def test_a_server_alone_has_no_cluster() -> None:
    server = ServerProcess()
    try:
        assert server.admin("/cluster") == {"node": None, "nodes": []}
        assert "cluster" not in server.admin("/health")
    finally:
        server.kill()


def test_what_is_hot_gets_copies_and_loses_them_as_it_cools(
    etcd: EtcdProcess, node: StartNode
) -> None:
    servers = {name: node(name, "--heat-half-life=0.5") for name in ("a", "b", "c")}
    until(lambda: set(states(servers["a"]).values()) == {"up"})
    keys = [f"{{hot}}{index}" for index in range(16)]
    (group,) = set(groups_of([key.encode() for key in keys]).tolist())
    blocks = [(key, index * 65536) for index, key in enumerate(keys)]
    cache = np.arange(65536 * len(keys), dtype=np.uint8)

    def holders() -> list[str]:
        rows = servers["a"].admin("/cluster")["nodes"]
        return [name for row in rows for name in row["copies"].get(f"{group:016x}", [])]

    with infinistore.connect(etcd.url(), "kv", transport="tcp") as store:
        store.write_cache(cache, blocks, 65536, unit="bytes").wait()
        read = np.zeros_like(cache)

        def is_copied() -> bool:
            outcomes = store.read_cache(read, blocks, 65536, unit="bytes").wait()
            assert outcomes.all_ok
            return len(holders()) == 2

        until(is_copied)
        assert np.array_equal(read, cache)
        copied = holders()
        until(lambda: all(is_copied() and values_at(servers[name], keys) for name in copied))
        made = servers["a"].admin("/metrics") + servers["b"].admin("/metrics")
        assert "infinistore_cluster_copies_made_total 2" in made + servers["c"].admin("/metrics")
        until(lambda: not holders())
        until(lambda: not any(values_at(servers[name], keys) for name in copied))
        assert store.read_cache(read, blocks, 65536, unit="bytes").wait().all_ok


def test_explain_names_the_node_that_is_away(etcd: EtcdProcess, node: StartNode) -> None:
    first, second = node("a"), node("b")
    until(lambda: all(row["answers"] for row in first.admin("/cluster")["nodes"]))
    until(lambda: names(first) == names(second) == ["a", "b"])
    keys = [f"key-{index}" for index in range(32)]
    with infinistore.connect(etcd.url()) as client:
        client.write_cache(
            np.zeros(32 * 4096, np.uint8), [(k, i * 4096) for i, k in enumerate(keys)], 4096
        )
        client.sync()

    def explained() -> list[dict[str, str]]:
        words = ["explain", "--json", "--admin", first.admin_address]
        words += [f"--node=b={second.admin_address}", *(f"--key={key}" for key in keys)]
        told = json.loads(CliRunner().invoke(group, words).output)["keys"]
        return [dict(each) for each in told]

    assert {each["state"] for each in explained()} == {"present"}
    second.kill()
    told = explained()
    away = [each for each in told if each["state"] == "away"]
    assert 0 < len(away) < len(keys)
    assert {each["server"] for each in away} == {second.admin_address}
    assert [each["state"] for each in told].count("present") == len(keys) - len(away)
