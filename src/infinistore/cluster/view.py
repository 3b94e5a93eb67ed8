"""What a client knows of its cluster: the nodes, and where copies of hot groups are.

Nodes come from a source: a list in the URL, or a registry (`SOURCES`). Copies, load and state come
from the nodes themselves: each keeps its note, a small value, on its own server under `NOTE_KEY` in
`NOTE_NAMESPACE`. A node without a note has made no copies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from infinistore.client.address import parse_address
from infinistore.cluster.nodes import NAME_BYTES_MAX, NODES_MAX, Node, State, View
from infinistore.config import ClientConfig
from infinistore.errors import ConfigError, UsageError

SCHEME = "infinistore"
SECURE = "infinistores"  # TLS with every node
NOTE_NAMESPACE = "infinistore.cluster"
NOTE_KEY = b"view"
# A note is its size in bytes, a line feed, JSON, and blanks up to whole pages: a reader, who has to
# say how much he wants, takes the first page and mostly has it all.
NOTE_PAGE_BYTES = 4096
NOTE_BYTES_MAX = 1 << 20
_SIZE_DIGITS = 8
_GROUP_DIGITS = 16
COPIES_MAX = NODES_MAX - 1  # of one group


class ViewSource(Protocol):
    """Tells of the nodes, as often as it is asked."""

    def current(self) -> View:
        """The latest view; never waits."""

    def tell_replacing(self, namespace: str) -> None:
        """Leaves word that values of this namespace are replaced. Raises `LinkError`."""

    def close(self) -> None:
        """Ends its own threads and connections."""


@dataclass(frozen=True, slots=True)
class StaticSource:
    """The nodes of a list, which stay what they are."""

    view: View

    def current(self) -> View:
        """The list."""
        return self.view

    def tell_replacing(self, namespace: str) -> None:
        """Nobody leaves a list and comes back: all of it must answer who replaces."""

    def close(self) -> None:
        """Nothing to end."""

    @classmethod
    def of_url(cls, url: str) -> StaticSource:
        """`infinistore://a:1,b:2`: each address is its node's name, too. Raises `UsageError`."""
        rest = url.strip().partition("://")[2].removesuffix("/")
        addresses = []
        for part in rest.split(","):
            host, port = parse_address(f"{SCHEME}://{part.strip()}")
            addresses.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        try:
            return cls(View.of(Node(address, address) for address in addresses))
        except ConfigError as error:
            raise UsageError(f"{url!r}: {error}") from None


def _static_source(url: str, config: ClientConfig) -> ViewSource:
    return StaticSource.of_url(url)


def _etcd_source(url: str, config: ClientConfig) -> ViewSource:
    from infinistore.cluster.members.source import EtcdSource  # with the extra, if at all

    return EtcdSource(url, config.etcd_user, config.etcd_password)


# From a URL's scheme to what finds the nodes. A maker checks its URL, and waits for a first view.
SOURCES: dict[str, Callable[[str, ClientConfig], ViewSource]] = {
    SCHEME: _static_source,
    SECURE: _static_source,
    f"{SCHEME}+etcd": _etcd_source,
    f"{SECURE}+etcd": _etcd_source,
}


@dataclass(frozen=True, slots=True)
class Note:
    """What one node says of itself and of the copies of its groups."""

    name: str
    incarnation: int = 0
    state: State = "up"
    copies: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # group id -> nodes' names
    bytes_per_s: float = 0.0  # what it serves
    at_version: int = 0  # of the view that it acts on
    # Of what it serves, groups that have copies: its own, and those that it holds a copy of.
    served: Mapping[int, float] = field(default_factory=dict)  # group id -> bytes a second
    room_bytes: int = 0  # for more copies


def encode_note(note: Note) -> bytes:
    """The value to keep under `NOTE_KEY`. Raises `ConfigError` if it is too large."""
    text = json.dumps(
        {
            "name": note.name,
            "incarnation": note.incarnation,
            "state": note.state,
            "copies": {f"{group:016x}": list(names) for group, names in note.copies.items()},
            "bytes_per_s": note.bytes_per_s,
            "at_version": note.at_version,
            "served": {f"{group:016x}": round(rate) for group, rate in note.served.items()},
            "room_bytes": note.room_bytes,
        },
        separators=(",", ":"),
    ).encode()
    size = -(-(_SIZE_DIGITS + 1 + len(text)) // NOTE_PAGE_BYTES) * NOTE_PAGE_BYTES
    if size > NOTE_BYTES_MAX:
        raise ConfigError(
            f"a note of {size} bytes; at most {NOTE_BYTES_MAX} fit: tell fewer copies"
        )
    return (b"%08d\n%b" % (size, text)).ljust(size)


def note_bytes(first_page: bytes) -> int:
    """The size of the note that begins so. Raises `ConfigError`."""
    digits = first_page[:_SIZE_DIGITS]
    size = int(digits) if len(digits) == _SIZE_DIGITS and digits.isdigit() else 0
    if not 0 < size <= NOTE_BYTES_MAX or size % NOTE_PAGE_BYTES:
        raise ConfigError(f"a note begins with {digits!r}; it begins with its size in bytes")
    return size


def decode_note(value: bytes) -> Note:
    """What `encode_note` made, of any source. Raises `ConfigError`."""
    if note_bytes(value) != len(value):
        raise ConfigError(f"a note of {len(value)} bytes says that it has {value[:8]!r}")
    try:
        document = json.loads(value[_SIZE_DIGITS:])
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"a note that is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"a note that is {document!r:.80}; it is an object")
    node = Node(  # for its checks
        name=cast(str, document.get("name")),
        address="-",
        incarnation=cast(int, document.get("incarnation", 0)),
        state=cast(State, document.get("state", "up")),
    )
    return Note(
        node.name,
        node.incarnation,
        node.state,
        _copies(document.get("copies", {})),
        float(_number(document, "bytes_per_s")),
        int(_number(document, "at_version")),
        _served(document.get("served", {})),
        int(_number(document, "room_bytes")),
    )


def _number(document: dict[str, Any], name: str) -> int | float:
    value = document.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**63:
        raise ConfigError(f"a note's {name} is {value!r:.80}; it is a number of 0 or more")
    return value


def _copies(document: object) -> dict[int, tuple[str, ...]]:
    if not isinstance(document, dict):
        raise ConfigError(f"a note's copies are {document!r:.80}; they are an object")
    copies: dict[int, tuple[str, ...]] = {}
    for group, names in document.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"a note's copies of {group} are {names!r:.80}; they are names")
        if any(len(name) > NAME_BYTES_MAX for name in names):
            raise ConfigError(f"a note's copies of {group} have names that are too long")
        copies[_group(group)] = tuple(names[:COPIES_MAX])
    return copies


def _served(document: object) -> dict[int, float]:
    if not isinstance(document, dict):
        raise ConfigError(f"a note's served is {document!r:.80}; it is an object")
    return {_group(group): float(_number(document, group)) for group in document}


def _group(digits: str) -> int:
    if len(digits) != _GROUP_DIGITS or not set(digits) <= set("0123456789abcdef"):
        raise ConfigError(f"a note's group is {digits!r:.80}; it is 16 hexadecimal digits")
    return int(digits, 16)


@dataclass(frozen=True, slots=True)
class Picture:
    """A view and all notes as one: what calls are routed by."""

    view: View
    copies: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    # Of the groups with copies those whose owner then is gone: who owns them now may have nothing.
    orphaned: frozenset[int] = frozenset()


def merge(view: View, notes: Mapping[str, Note], past: Iterable[Note] = ()) -> Picture:
    """The picture that a view and nodes' notes, by the view's names, make together.

    A note counts for the incarnation that wrote it only, but for the copies in it: they outlive
    their owner. A node that says it is leaving or joining is believed; copies count on nodes of
    the view. `past` are notes of incarnations that are gone.
    """
    nodes = []
    orphaned: set[int] = set()
    current: set[str] = set()
    copies: dict[int, tuple[str, ...]] = {}
    rates: dict[str, float] = {}
    names = {node.name for node in view.nodes}
    for node in view.nodes:
        note = notes.get(node.name)
        if note is None or (node.incarnation and note.incarnation not in (0, node.incarnation)):
            nodes.append(node)
            continue
        current.add(node.name)
        rates[node.name] = note.bytes_per_s
        nodes.append(node if note.state == "up" else replace(node, state=note.state))
    for note in (*notes.values(), *past):
        if note.name not in current or note is not notes.get(note.name):
            orphaned |= note.copies.keys()
        for group, holders in note.copies.items():
            known = (*copies.get(group, ()), *(name for name in holders if name in names))
            copies[group] = tuple(dict.fromkeys(known))[:COPIES_MAX]
    return Picture(View(tuple(nodes), view.version), copies, rates, frozenset(orphaned))
