"""The verbs of both clients under one shape, so that one workload drives either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import infinistore
from chaos.content import Array
from infinistore.errors import CODE_TO_ERROR, Code, ConnectError, InfiniStoreError

Blocks = Sequence[tuple[str, int]]


class Calls(Protocol):
    """What a caller does; those of the blocking client never suspend."""

    async def write(self, cache: Array, blocks: Blocks, size: int, **how: Any) -> list[Code]: ...
    async def read(self, cache: Array, blocks: Blocks, size: int, **how: Any) -> list[Code]: ...
    async def exists(self, keys: Sequence[str]) -> list[bool]: ...
    async def match(self, keys: Sequence[str]) -> int: ...
    async def lookup(self, keys: Sequence[str], lease_s: float) -> tuple[int, int]: ...
    async def release(self, lease_id: int) -> None: ...
    async def delete(self, keys: Sequence[str]) -> int: ...
    async def abort(self, keys: Sequence[str]) -> None: ...
    async def close(self) -> None: ...


class BlockingCalls:
    """`Client`, whose calls hold up their thread."""

    def __init__(self, client: infinistore.Client) -> None:
        self._client = client

    async def write(self, cache: Array, blocks: Blocks, size: int, **how: Any) -> list[Code]:
        return list(self._client.write_cache(cache, blocks, size, unit="bytes", **how).wait())

    async def read(self, cache: Array, blocks: Blocks, size: int, **how: Any) -> list[Code]:
        return list(self._client.read_cache(cache, blocks, size, unit="bytes", **how).wait())

    async def exists(self, keys: Sequence[str]) -> list[bool]:
        return self._client.exists(keys)

    async def match(self, keys: Sequence[str]) -> int:
        return self._client.match_prefix(keys)

    async def lookup(self, keys: Sequence[str], lease_s: float) -> tuple[int, int]:
        found = self._client.lookup(keys, lease_s=lease_s)
        return found.wait(), found.lease_id

    async def release(self, lease_id: int) -> None:
        self._client.release([lease_id])

    async def delete(self, keys: Sequence[str]) -> int:
        return self._client.delete(keys)

    async def abort(self, keys: Sequence[str]) -> None:
        self._client.abort(keys)

    async def close(self) -> None:
        self._client.close()


class AwaitedCalls:
    """`AsyncClient`; a batch's failure comes as its outcomes, as it does from the other."""

    def __init__(self, client: infinistore.AsyncClient) -> None:
        self._client = client

    async def write(self, cache: Array, blocks: Blocks, size: int, **how: Any) -> list[Code]:
        try:
            return list(await self._client.write_cache(cache, blocks, size, unit="bytes", **how))
        except InfiniStoreError as error:
            return _outcomes(error)

    async def read(self, cache: Array, blocks: Blocks, size: int, **how: Any) -> list[Code]:
        try:
            return list(await self._client.read_cache(cache, blocks, size, unit="bytes", **how))
        except InfiniStoreError as error:
            return _outcomes(error)

    async def exists(self, keys: Sequence[str]) -> list[bool]:
        return await self._client.exists(keys)

    async def match(self, keys: Sequence[str]) -> int:
        return await self._client.match_prefix(keys)

    async def lookup(self, keys: Sequence[str], lease_s: float) -> tuple[int, int]:
        found = await self._client.lookup(keys, lease_s=lease_s)
        return found.blocks, found.lease_id

    async def release(self, lease_id: int) -> None:
        await self._client.release([lease_id])

    async def delete(self, keys: Sequence[str]) -> int:
        return await self._client.delete(keys)

    async def abort(self, keys: Sequence[str]) -> None:
        await self._client.abort(keys)

    async def close(self) -> None:
        await self._client.close()


def _outcomes(error: InfiniStoreError) -> list[Code]:
    if error.outcomes is None:
        raise error
    return list(error.outcomes)


_ERROR_TO_CODE = {kind: code for code, kind in reversed(CODE_TO_ERROR.items())}


def code_of(error: InfiniStoreError) -> Code:
    """The outcome that an exception stands for."""
    if isinstance(error, ConnectError):
        return Code.DISCONNECTED
    return _ERROR_TO_CODE.get(type(error), Code.INVALID)


async def connect(style: str, url: str, transport: str) -> Calls:
    """A client of the style `blocking` or `awaited`."""
    if style == "awaited":
        client = await infinistore.connect_async(url, "chaos", transport=transport)
        return AwaitedCalls(client)
    return BlockingCalls(infinistore.connect(url, "chaos", transport=transport))
