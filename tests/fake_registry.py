"""A registry in memory, for tests: leases that end when told to, and an outage on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from infinistore.cluster.members.registry import Change, Listing, RegistryError


class FakeStore:
    """What all connections share."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[bytes, int]] = {}
        self.leases: set[int] = set()
        self.replacing: set[str] = set()
        self.is_away = False
        self.opened = 0
        self.calls: list[str] = []
        self._granted = 0
        self._log: list[Change] = []
        self._moved = asyncio.Event()

    def open(self, attempt: int) -> FakeRegistry:
        self.opened += 1
        return FakeRegistry(self)

    def grant(self) -> int:
        self._granted += 1
        self.leases.add(self._granted)
        return self._granted

    def put(self, name: str, value: bytes, lease: int) -> None:
        self.values[name] = (value, lease)
        self._tell(Change(name, value))

    def expire(self, lease: int) -> None:
        self.leases.discard(lease)
        for name in [name for name, (_, held) in self.values.items() if held == lease]:
            del self.values[name]
            self._tell(Change(name, None))

    def go_away(self) -> None:
        self.is_away = True
        self._wake()

    def lose_everything(self) -> None:
        """As an etcd that comes back without its data: nobody is told."""
        self.values.clear()
        self.leases.clear()

    def _tell(self, change: Change) -> None:
        self._log.append(change)
        self._wake()

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def check(self, call: str) -> None:
        self.calls.append(call)
        if self.is_away:
            raise RegistryError("the fake registry is away")

    @property
    def revision(self) -> int:
        return len(self._log)

    async def after(self, revision: int) -> AsyncIterator[Change]:
        while True:
            moved = self._moved
            while revision < len(self._log):
                self.check("event")
                revision += 1
                yield self._log[revision - 1]
            self.check("wait")
            await moved.wait()


class FakeRegistry:
    def __init__(self, store: FakeStore) -> None:
        self._store = store

    async def grant(self, ttl_s: int) -> int:
        self._store.check("grant")
        return self._store.grant()

    async def keep_alive(self, lease: int) -> bool:
        self._store.check("keep_alive")
        return lease in self._store.leases

    async def revoke(self, lease: int) -> None:
        self._store.check("revoke")
        self._store.expire(lease)

    async def put(self, name: str, value: bytes, lease: int) -> None:
        self._store.check("put")
        if lease not in self._store.leases:
            raise RegistryError("no such lease")
        self._store.put(name, value, lease)

    async def mark_replacing(self, namespace: str) -> None:
        self._store.check("mark")
        self._store.replacing.add(namespace)

    async def replacing(self) -> frozenset[str]:
        self._store.check("replacing")
        return frozenset(self._store.replacing)

    async def listing(self) -> Listing:
        self._store.check("listing")
        values = {name: value for name, (value, _) in self._store.values.items()}
        return Listing(values, self._store.revision)

    def changes(self, after: int) -> AsyncIterator[Change]:
        return self._store.after(after)

    async def close(self) -> None:
        pass
