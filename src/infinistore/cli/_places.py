"""Which servers a key is asked of: the one at --admin, or in a cluster its owner and the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from infinistore.cli._admin import Admin, find_admin
from infinistore.cli._stories import Servers
from infinistore.cluster.nodes import Node
from infinistore.cluster.placement import Placement, group_id, group_of
from infinistore.errors import ConfigError, ConnectError, UsageError

PLACES_MAX = 2  # the owner, and who has its groups while it is away


def servers_of(admin: Admin, nodes: Sequence[str]) -> Servers:
    """Where keys are asked about. `nodes`: NAME=HOST:PORT of admin ports that are elsewhere."""
    given = dict(_read(text, admin) for text in nodes)
    try:
        view = admin.ask("GET", "/cluster")
    except ConnectError as error:
        return Servers(lambda key: (admin,), {admin: str(error)})
    if view["node"] is not None:
        return Servers(placed(admin, view, given))
    if nodes:
        raise UsageError(f"--node: {admin} is a node of no cluster")
    return Servers(lambda key: (admin,))


def placed(
    admin: Admin, view: Mapping[str, Any], given: Mapping[str, Admin]
) -> Callable[[bytes], Sequence[Admin]]:
    """By the nodes that a cluster's node sees; `given` says where the admin ports of some are."""
    names = {node["name"] for node in view["nodes"]}
    if unknown := sorted(set(given) - names):
        raise UsageError(f"--node {unknown[0]}: the cluster has {', '.join(sorted(names))}")
    rows = [node for node in view["nodes"] if node["state"] != "leaving"] or view["nodes"]
    placement = Placement(
        [Node(row["name"], row["address"], row["capacity_bytes"]) for row in rows]
    )
    ports: dict[str, Admin] = {row["name"]: _port_of(row, view["node"], admin) for row in rows}
    ports.update(given)
    count = min(PLACES_MAX, len(rows))

    def where(key: bytes) -> Sequence[Admin]:
        order = placement.order(group_id(group_of(key)))
        return [ports[node.name] for node in order[:count]]

    return where


def _port_of(row: Mapping[str, Any], own: str, admin: Admin) -> Admin:
    """A node's admin port, as far as its data address says it."""
    host = str(row["address"]).rpartition(":")[0].strip("[]")
    return admin if row["name"] == own else replace(admin, host=host)


def _read(text: str, admin: Admin) -> tuple[str, Admin]:
    name, equals, address = text.rpartition("=")
    if not equals or not name:
        raise ConfigError(f"--node {text!r} is not NAME=HOST:PORT")
    return name, replace(find_admin(address, None), token=admin.token)
