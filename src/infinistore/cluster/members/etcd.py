"""etcd (v3) as the registry: its URL, and its calls behind `Registry`.

A node is the key /infinistore/CLUSTER/nodes/NAME under a lease; its value is the node's JSON. A
namespace in which values are replaced is the key /infinistore/CLUSTER/replacing/NAMESPACE.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from infinistore.cluster.members.registry import (
    Change,
    Listing,
    OpenRegistry,
    Registry,
    RegistryError,
)
from infinistore.errors import ConfigError, SetupError

SCHEME = "infinistore+etcd://"
SCHEMES = (SCHEME, "infinistores+etcd://")  # TLS with the nodes
PORT = 2379
ENDPOINTS_MAX = 16
CLUSTER_BYTES_MAX = 128
# When to connect again is ours to say: gRPC's own waits grow to two minutes, and connections of
# one address share them.
_CHANNEL = {
    "grpc.use_local_subchannel_pool": 1,
    "grpc.min_reconnect_backoff_ms": 500,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 500,
}


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """One etcd, by any of its members, and a cluster in it."""

    endpoints: tuple[tuple[str, int], ...]
    cluster: str
    user: str = ""  # empty: etcd asks for none
    password: str = field(default="", repr=False)

    @property
    def prefix(self) -> str:
        return f"/infinistore/{self.cluster}/nodes/"

    @property
    def replacing_prefix(self) -> str:
        return f"/infinistore/{self.cluster}/replacing/"


def parse_etcd(url: str, user: str = "", password: str = "") -> EtcdAddress:
    """`infinistore+etcd://HOST[:PORT][,HOST[:PORT]...]/CLUSTER`. Raises `ConfigError`."""
    if bool(user) != bool(password):
        given, other = ("user", "password") if user else ("password", "user")
        raise ConfigError(f"etcd_{given} is set and etcd_{other} is not; set both or neither")
    if "@" in url:  # it would be seen in lists of processes and in logs
        raise ConfigError("a cluster's URL has no user in it; give etcd_user and etcd_password")
    hosts, slash, cluster = url.strip().partition("://")[2].partition("/")
    cluster = cluster.removesuffix("/")
    if not slash or not cluster or not cluster.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(
            f"{url!r} names no cluster; write {SCHEME}HOST:{PORT}/NAME, the name of letters, "
            "digits, - and _"
        )
    if len(cluster.encode()) > CLUSTER_BYTES_MAX:
        raise ConfigError(f"{url!r}: the cluster's name has more than {CLUSTER_BYTES_MAX} bytes")
    parts = hosts.split(",")
    if len(parts) > ENDPOINTS_MAX:
        raise ConfigError(f"{url!r} names {len(parts)} members of etcd; at most {ENDPOINTS_MAX}")
    endpoints = tuple(_endpoint(url, part) for part in parts)
    return EtcdAddress(endpoints, cluster, user, password)


def _endpoint(url: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(PORT)
    is_number = port.isascii() and port.isdigit() and 1 <= int(port) <= 65535
    if not host or not is_number or (":" in host and not host.startswith("[")):
        raise ConfigError(f"{url!r}: {text!r} is no HOST:PORT of etcd")
    return host, int(port)


def etcd_registry(address: EtcdAddress, timeout_s: float) -> OpenRegistry:
    """Opens connections to etcd's members in turn. Raises `SetupError` without the extra."""
    try:
        import aetcd
    except ImportError as error:
        raise SetupError(
            f"{SCHEME} needs the package {error.name}; run: pip install 'infinistore[etcd]'"
        ) from error

    def open_registry(attempt: int) -> Registry:
        host, port = address.endpoints[attempt % len(address.endpoints)]
        client = aetcd.Client(
            host,
            port,
            username=address.user or None,
            password=address.password or None,
            timeout=timeout_s,
            options=dict(_CHANNEL),
        )
        return EtcdRegistry(client, address.prefix, address.replacing_prefix)

    return open_registry


class EtcdRegistry:
    """`Registry` over one client of aetcd."""

    def __init__(self, client: Any, prefix: str, replacing_prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._replacing_prefix = replacing_prefix

    async def grant(self, ttl_s: int) -> int:
        with _failures():
            return int((await self._client.lease(ttl_s)).id)

    async def keep_alive(self, lease: int) -> bool:
        with _failures():
            answer = await self._client.refresh_lease(lease)
            return answer is not None and answer.TTL > 0

    async def revoke(self, lease: int) -> None:
        with _failures():
            await self._client.revoke_lease(lease)

    async def put(self, name: str, value: bytes, lease: int) -> None:
        with _failures():
            await self._client.put((self._prefix + name).encode(), value, lease=lease)

    async def mark_replacing(self, namespace: str) -> None:
        with _failures():
            await self._client.put((self._replacing_prefix + namespace).encode(), b"1")

    async def replacing(self) -> frozenset[str]:
        with _failures():
            found = await self._client.get_prefix(self._replacing_prefix.encode())
            keys = (each.key.decode(errors="replace") for each in found)
            return frozenset(key.removeprefix(self._replacing_prefix) for key in keys)

    async def listing(self) -> Listing:
        with _failures():
            found = await self._client.get_prefix(self._prefix.encode())
            values = {self._name(each.key): bytes(each.value) for each in found}
            return Listing(values, int(found.header.revision))

    async def changes(self, after: int) -> AsyncIterator[Change]:
        with _failures():
            watch = await self._client.watch_prefix(self._prefix.encode(), start_revision=after + 1)
            async for event in watch:
                is_put = event.kind == "PUT"
                yield Change(self._name(event.kv.key), bytes(event.kv.value) if is_put else None)

    async def close(self) -> None:
        with contextlib.suppress(Exception):  # it is given up, whatever it says to that
            await self._client.close()

    def _name(self, key: bytes) -> str:
        return key.decode(errors="replace").removeprefix(self._prefix)


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """What etcd's client raises, of several kinds, as one."""
    try:
        yield
    except (GeneratorExit, RegistryError):
        raise
    except Exception as error:
        text = str(error).partition("\n")[0]
        raise RegistryError(f"etcd: {text or type(error).__name__}") from error
