"""Connections to the other nodes, and to one's own server: one a node and namespace, the oldest
closed when there are too many."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict

from infinistore.client.address import SCHEME, SECURE_SCHEME
from infinistore.client.aio import AsyncClient, connect_async
from infinistore.errors import InfiniStoreError

CLIENTS_MAX = 64


class Peers:
    """For the tasks of one event loop."""

    def __init__(
        self, token: str, clients_max: int = CLIENTS_MAX, *, is_secure: bool = False
    ) -> None:
        self._token = token
        self._scheme = SECURE_SCHEME if is_secure else SCHEME
        self.clients_max = clients_max
        # Tasks, so that two who want the same client wait for one connection.
        self._clients: OrderedDict[tuple[str, str], asyncio.Task[AsyncClient]] = OrderedDict()

    async def client(self, address: str, namespace: str) -> AsyncClient:
        """Connects if need be. Raises `InfiniStoreError`."""
        place = (address, namespace)
        connecting = self._clients.get(place)
        if connecting is None:
            connecting = asyncio.ensure_future(self._connect(address, namespace))
            self._clients[place] = connecting
            while len(self._clients) > self.clients_max:
                await _close(self._clients.popitem(last=False)[1])
        try:
            client = await asyncio.shield(connecting)
        except InfiniStoreError:
            if self._clients.get(place) is connecting:
                del self._clients[place]
            raise
        if place in self._clients:
            self._clients.move_to_end(place)
        return client

    async def _connect(self, address: str, namespace: str) -> AsyncClient:
        url = self._scheme + address
        # Whatever the environment says of clients: nodes write to each other.
        return await connect_async(url, namespace, token=self._token, channels=1, read_only=False)

    async def close(self) -> None:
        while self._clients:
            await _close(self._clients.popitem()[1])


async def _close(connecting: asyncio.Task[AsyncClient]) -> None:
    with contextlib.suppress(InfiniStoreError, OSError):
        await (await connecting).close()
