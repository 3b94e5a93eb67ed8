"""The nodes of a cluster and a view of all of them: plain values, and their JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from infinistore.errors import ConfigError

State = Literal["up", "joining", "leaving"]

STATES: tuple[State, ...] = get_args(State)
NODES_MAX = 1024
NAME_BYTES_MAX = 128  # an address is a name, too
ADDRESS_BYTES_MAX = 255
NODE_JSON_BYTES_MAX = 4096
VIEW_JSON_BYTES_MAX = 1 << 20
_U64_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """One server as the cluster sees it. Raises `ConfigError` for values out of bounds."""

    name: str  # where keys go depends on it: it outlives restarts and moves
    address: str  # host:port, as after infinistore://
    capacity_bytes: int = 0  # its weight; 0: as the others have on average
    incarnation: int = 0  # a number of one start of it; 0: not known
    state: State = "up"

    def __post_init__(self) -> None:
        _check_text("name", self.name, NAME_BYTES_MAX)
        _check_text("address", self.address, ADDRESS_BYTES_MAX)
        for what in ("capacity_bytes", "incarnation"):
            value = getattr(self, what)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _U64_MAX:
                raise ConfigError(
                    f"node {self.name!r}: {what} is {value!r}; give a number of 0 to 2**64 - 1"
                )
        if self.state not in STATES:
            raise ConfigError(
                f"node {self.name!r}: state is {self.state!r}; it is one of {', '.join(STATES)}"
            )


@dataclass(frozen=True, slots=True)
class View:
    """All nodes at one moment, in the order of their names; a later view has a higher version."""

    nodes: tuple[Node, ...]
    version: int = 0

    @classmethod
    def of(cls, nodes: Iterable[Node], version: int = 0) -> View:
        """Sorts the nodes. Raises `ConfigError` if there are too many, or two of one name."""
        ordered = tuple(sorted(nodes))
        if len(ordered) > NODES_MAX:
            raise ConfigError(f"a cluster of {len(ordered)} nodes; at most {NODES_MAX} can be one")
        for node, after in itertools.pairwise(ordered):
            if node.name == after.name:
                raise ConfigError(f"two nodes are named {node.name!r}; name each of them apart")
        return cls(ordered, version)

    def find(self, name: str) -> Node | None:
        """The node of that name."""
        return next((node for node in self.nodes if node.name == name), None)


def encode_node(node: Node) -> str:
    """One line of JSON."""
    return json.dumps(_fields(node), separators=(",", ":"))


def decode_node(text: str | bytes) -> Node:
    """What `encode_node` made, of any source. Raises `ConfigError`."""
    return _node(_parsed(text, NODE_JSON_BYTES_MAX, "a node"))


def encode_view(view: View) -> str:
    """One line of JSON."""
    nodes = [_fields(node) for node in view.nodes]
    return json.dumps({"version": view.version, "nodes": nodes}, separators=(",", ":"))


def decode_view(text: str | bytes) -> View:
    """What `encode_view` made, of any source. Raises `ConfigError`."""
    document = _parsed(text, VIEW_JSON_BYTES_MAX, "a view")
    version, nodes = document.get("version"), document.get("nodes")
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise ConfigError(f"a view's version is {version!r}; it is a number of 0 or more")
    if not isinstance(nodes, list):
        raise ConfigError(f"a view's nodes are {nodes!r:.80}; they are a list")
    return View.of((_node(node) for node in nodes), version)


def _fields(node: Node) -> dict[str, str | int]:
    return {
        "name": node.name,
        "address": node.address,
        "capacity_bytes": node.capacity_bytes,
        "incarnation": node.incarnation,
        "state": node.state,
    }


def _node(document: object) -> Node:
    if not isinstance(document, Mapping):
        raise ConfigError(f"a node is {document!r:.80}; it is an object with name and address")
    # What a later version adds is no reason to refuse the node.
    return Node(
        name=cast(str, document.get("name")),
        address=cast(str, document.get("address")),
        capacity_bytes=cast(int, document.get("capacity_bytes", 0)),
        incarnation=cast(int, document.get("incarnation", 0)),
        state=cast(State, document.get("state", "up")),
    )


def _parsed(text: str | bytes, bytes_max: int, what: str) -> dict[str, Any]:
    if len(text) > bytes_max:
        raise ConfigError(f"{what} of {len(text)} bytes of JSON; it has at most {bytes_max}")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what} that is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{what} that is {document!r:.80}; it is an object")
    return document


def _check_text(what: str, text: object, bytes_max: int) -> None:
    if not isinstance(text, str) or not text or not text.isprintable() or " " in text:
        raise ConfigError(f"a node's {what} is {text!r:.80}; give a text without blanks")
    size = len(text.encode())
    if size > bytes_max:
        raise ConfigError(f"a node's {what} has {size} bytes; at most {bytes_max} fit")
