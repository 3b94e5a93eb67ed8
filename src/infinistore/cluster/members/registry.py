"""Where nodes meet: what membership asks of a registry, whatever keeps it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from infinistore.errors import LinkError


class RegistryError(LinkError):
    """The registry did not answer, or refused; what it did of the call is unknown."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Every node's value by its name, as of a revision."""

    values: Mapping[str, bytes]
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """One node's new value; None: it is gone."""

    name: str
    value: bytes | None


class Registry(Protocol):
    """One connection to the registry of one cluster. Every call ends in time or raises
    `RegistryError`; after that the connection is given up for another."""

    async def grant(self, ttl_s: int) -> int:
        """A new lease: what is put under it is gone once it is not kept alive for `ttl_s`."""
        ...

    async def keep_alive(self, lease: int) -> bool:
        """False: the lease has expired."""
        ...

    async def revoke(self, lease: int) -> None:
        """Ends a lease, and what was put under it."""
        ...

    async def put(self, name: str, value: bytes, lease: int) -> None: ...

    async def mark_replacing(self, namespace: str) -> None:
        """Notes for good that values of a namespace are replaced."""
        ...

    async def replacing(self) -> frozenset[str]:
        """The namespaces that were noted so."""
        ...

    async def listing(self) -> Listing: ...

    def changes(self, after: int) -> AsyncIterator[Change]:
        """Those after a revision, as they come; without an end."""
        ...

    async def close(self) -> None: ...


# Opens a connection; a rising number chooses among several endpoints.
OpenRegistry = Callable[[int], Registry]
