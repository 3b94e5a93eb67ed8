"""Which servers of a cluster a key is asked of."""

from __future__ import annotations

from typing import Any

import pytest

from infinistore.cli import _places
from infinistore.cli._admin import Admin
from infinistore.cli._stories import Servers
from infinistore.cluster.nodes import Node
from infinistore.cluster.placement import group_id, order
from infinistore.errors import ConfigError, ConnectError, UsageError

HERE = Admin("10.0.0.1", 18080, "s3cret")


def row(name: str, host: str, state: str = "up") -> dict[str, Any]:
    return {"name": name, "address": f"{host}:22345", "capacity_bytes": 1 << 30, "state": state}


VIEW = {"node": "a", "nodes": [row("a", "10.0.0.1"), row("b", "10.0.0.2"), row("c", "[fd00::3]")]}
ADMINS = {
    "a": HERE,
    "b": Admin("10.0.0.2", 18080, "s3cret"),
    "c": Admin("fd00::3", 18080, "s3cret"),
}


def owners(key: bytes) -> list[str]:
    nodes = [Node(each["name"], each["address"], 1 << 30) for each in VIEW["nodes"]]  # type: ignore[index]
    return [node.name for node in order(group_id(key), nodes)]


def test_a_key_is_asked_of_its_owner_and_then_of_the_next() -> None:
    where = _places.placed(HERE, VIEW, {})
    keys = [b"key-%d" % i for i in range(50)]
    for key in keys:
        assert where(key) == [ADMINS[name] for name in owners(key)[:2]]
    assert len({where(key)[0] for key in keys}) == 3
    assert where(b"{tag}1") == where(b"{tag}2")


def test_a_node_s_admin_port_can_be_said_and_a_leaving_one_is_not_asked() -> None:
    other = Admin("127.0.0.1", 9, "s3cret")
    where = _places.placed(HERE, VIEW, {"b": other})
    assert other in {where(b"key-%d" % i)[0] for i in range(50)}
    nodes = [row("a", "10.0.0.1"), row("b", "10.0.0.2", "leaving")]
    assert _places.placed(HERE, {"node": "a", "nodes": nodes}, {})(b"key") == [HERE]
    with pytest.raises(UsageError, match="the cluster has a, b, c"):
        _places.placed(HERE, VIEW, {"d": other})


def test_alone_all_keys_are_the_one_server_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admin, "ask", lambda self, *rest: {"node": None, "nodes": []})
    assert _places.servers_of(HERE, []).admins_of(b"key") == (HERE,)
    with pytest.raises(UsageError, match="no cluster"):
        _places.servers_of(HERE, ["b=10.0.0.2:1"])
    with pytest.raises(ConfigError, match="NAME=HOST:PORT"):
        _places.servers_of(HERE, ["b"])


def test_what_the_owner_lacks_may_be_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is away is named, unless another has the key."""
    one, two = Admin("127.0.0.1", 1), Admin("127.0.0.1", 2)
    has = {two: {b"copied".hex()}}

    def ask(self: Admin, method: str, path: str, query: object = None, body: Any = None) -> Any:
        if self == one:
            raise ConnectError("nobody")
        states = ["present" if key in has[self] else "unknown" for key in body["hex_keys"]]
        return {"answers": [{"state": state} for state in states]}

    monkeypatch.setattr(Admin, "ask", ask)
    stories = Servers(lambda key: (one, two)).ask("space", [b"copied", b"lost"])
    assert [story.state for story in stories] == ["present", "away"]
    assert stories[1].server == "127.0.0.1:1"
