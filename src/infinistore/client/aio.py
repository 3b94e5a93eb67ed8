"""The client for one event loop, any kind of it: each verb is awaited.

The native side writes an eventfd when something has ended; the loop's reader of it resolves the
futures. A cancelled await cancels its operation and waits for the fence: when it returns, no thread
of ours touches the cache any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn

from infinistore.client._session import Session, open_native
from infinistore.client.arguments import Key, Pairs
from infinistore.client.native import NativeCall, NativeOperation
from infinistore.client.regions import Blocks, Segments
from infinistore.client.results import Batch, Lookup, Outcomes, failure_of, raise_if
from infinistore.errors import UsageError


async def connect_async(
    url: str,
    namespace: str = "default",
    token: str | None = None,
    *,
    transport: str | None = None,
    **settings: Any,
) -> AsyncClient:
    """See `connect`."""
    return await opened(open_native(url, namespace, token, transport, settings))


async def opened(connect: Callable[[], Session]) -> AsyncClient:
    """A client of this loop, once `connect`, which waits, has its session."""
    loop = asyncio.get_running_loop()
    connecting = loop.run_in_executor(None, connect)
    try:
        session = await asyncio.shield(connecting)
    except asyncio.CancelledError:
        connecting.add_done_callback(_close_unused)
        raise
    return AsyncClient(session, loop)


def _close_unused(connecting: asyncio.Future[Session]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        session = connecting.result()
        if session.begin_close():
            session.native.close()


class AsyncClient:
    """One server, for one event loop. Made by `connect_async()`; ended by `close()`."""

    def __init__(self, session: Session, loop: asyncio.AbstractEventLoop) -> None:
        self._session = session
        self._loop = loop
        self._ended: dict[int, asyncio.Future[None]] = {}
        self._fd = session.native.completion_fd()
        loop.add_reader(self._fd, self._resolve)

    async def write_cache(
        self,
        cache: Any,
        blocks: Pairs | Blocks,
        page_size: int,
        *,
        unit: str = "elements",
        value_bytes: int | None = None,
        value_offset: int = 0,
        on_exists: str = "keep",
        parents: Sequence[Key | None] | None = None,
        depths: Sequence[int] | None = None,
    ) -> Outcomes:
        """See `Client.write_cache`; raises what `sync()` would."""
        self._check_loop()
        batch = self._session.put_blocks(
            cache,
            blocks,
            page_size,
            unit=unit,
            value_bytes=value_bytes,
            value_offset=value_offset,
            on_exists=on_exists,
            parents=parents,
            depths=depths,
        )
        return await self._outcomes(batch)

    async def read_cache(
        self,
        cache: Any,
        blocks: Pairs | Blocks,
        page_size: int,
        *,
        unit: str = "elements",
        value_bytes: int | None = None,
        value_offset: int = 0,
        wait_s: float = 0.0,
        lease_id: int = 0,
        up_to: bool = False,
    ) -> Outcomes:
        """See `Client.read_cache`; raises what `sync()` would."""
        self._check_loop()
        batch = self._session.get_blocks(
            cache,
            blocks,
            page_size,
            unit=unit,
            value_bytes=value_bytes,
            value_offset=value_offset,
            wait_s=wait_s,
            lease_id=lease_id,
            up_to=up_to,
        )
        return await self._outcomes(batch)

    async def write_segments(
        self,
        keys: Sequence[Key],
        segments: Segments,
        *,
        value_bytes: int | None = None,
        value_offset: int = 0,
        on_exists: str = "keep",
        parents: Sequence[Key | None] | None = None,
        depths: Sequence[int] | None = None,
    ) -> Outcomes:
        """See `Client.write_segments`; raises what `sync()` would."""
        self._check_loop()
        batch = self._session.put_segments(
            keys,
            segments,
            value_bytes=value_bytes,
            value_offset=value_offset,
            on_exists=on_exists,
            parents=parents,
            depths=depths,
        )
        return await self._outcomes(batch)

    async def read_segments(
        self,
        keys: Sequence[Key],
        segments: Segments,
        *,
        value_offset: int = 0,
        value_bytes: int | None = None,
        wait_s: float = 0.0,
        lease_id: int = 0,
        up_to: bool = False,
    ) -> Outcomes:
        """See `Client.read_segments`; raises what `sync()` would."""
        self._check_loop()
        batch = self._session.get_segments(
            keys,
            segments,
            value_bytes=value_bytes,
            value_offset=value_offset,
            wait_s=wait_s,
            lease_id=lease_id,
            up_to=up_to,
        )
        return await self._outcomes(batch)

    async def sync(self) -> None:
        """Waits for what other tasks have in flight; each of them gets its own failures."""
        self._check_loop()
        while self._ended:
            await asyncio.wait(list(self._ended.values()))

    async def prepare_device(self, device: int) -> None:
        """Shows the server's pool to a CUDA device, as `Client.prepare_device`."""
        await asyncio.to_thread(self._session.prepare_device, device)

    async def match_prefix(self, keys: Sequence[Key]) -> int:
        """See `Client.match_prefix`."""
        return (await self.lookup(keys)).blocks

    async def lookup(
        self, keys: Sequence[Key], *, group: int = 1, lease_s: float | None = None
    ) -> Lookup:
        """See `Client.lookup`; the lookup is done when it comes."""
        self._check_loop()
        lookup = self._session.lookup(keys, group, lease_s)
        if lookup.native is not None:
            await self._end_of(lookup.native)
        raise_if(lookup.error)
        return lookup

    async def renew(self, lease_ids: Sequence[int], lease_s: float) -> None:
        """See `Client.renew`."""
        self._session.post_lease(lease_ids, lease_s)

    async def release(self, lease_ids: Sequence[int]) -> None:
        """See `Client.release`."""
        self._session.post_lease(lease_ids, None)

    async def exists(self, keys: Sequence[Key]) -> list[bool]:
        """See `Client.exists`."""
        self._check_loop()
        return self._session.take_exists(await self._call(self._session.exists(keys)))

    async def delete(self, keys: Sequence[Key]) -> int:
        """See `Client.delete`."""
        self._check_loop()
        return self._session.take_count(await self._call(self._session.erase(keys)))

    async def abort(self, keys: Sequence[Key]) -> None:
        """See `Client.abort`."""
        self._check_loop()
        self._session.take_count(await self._call(self._session.abort(keys)))

    def register(self, cache: Any) -> None:
        """See `Client.register`."""
        self._session.register(cache)

    def unregister(self, cache: Any) -> None:
        """See `Client.unregister`."""
        self._session.unregister(cache)

    async def stats(self) -> dict[str, int]:
        """See `Client.stats`."""
        self._check_loop()
        call = self._session.stats()
        await self._end_of(call)
        return self._session.take_stats(call)

    @property
    def transport(self) -> str:
        """See `Client.transport`."""
        return str(self._session.server()["transport"])

    @property
    def server(self) -> dict[str, Any]:
        """See `Client.server`."""
        return self._session.server()

    async def close(self) -> None:
        """See `Client.close`."""
        if not self._session.begin_close():
            return
        if self._loop.is_closed():  # its reader went with it
            self._session.native.close()
            return
        self._check_loop()
        try:
            # Shielded: it takes a moment, and half closed is no state to be left in.
            await asyncio.shield(self._loop.run_in_executor(None, self._session.native.close))
        finally:
            self._resolve()
            self._loop.remove_reader(self._fd)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        raise UsageError("a client cannot be pickled; pass the address, and connect_async() there")

    def __repr__(self) -> str:
        return f"<infinistore.AsyncClient of {self._session.url}>"

    # ---- waiting ----

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                "this client belongs to another event loop; call connect_async() in this one"
            )

    async def _outcomes(self, batch: Batch) -> Outcomes:
        self._session.forget(batch)
        await self._end_of(batch.native)
        raise_if(batch.error())
        return batch.outcomes

    async def _call(self, call: NativeCall | None) -> NativeCall | None:
        if call is not None:
            await self._end_of(call)
            raise_if(failure_of(call))
        return call

    async def _end_of(self, handle: NativeOperation) -> None:
        if handle.done:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._ended[handle.id] = future
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            handle.cancel()
            while not handle.done:
                # The fence comes soon, by itself: a second cancellation has to wait for it too.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(future)
            raise
        finally:
            self._ended.pop(handle.id, None)

    def _resolve(self) -> None:
        for operation_id in self._session.native.take_completed():
            future = self._ended.get(operation_id)
            if future is not None and not future.done():
                future.set_result(None)
