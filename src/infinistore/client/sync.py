"""The client for threads: verbs that return at once, and those that wait without the GIL."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NoReturn

from infinistore.client._session import Session, open_native
from infinistore.client.arguments import Key, Pairs
from infinistore.client.native import NativeCall
from infinistore.client.regions import Blocks, Segments
from infinistore.client.results import Batch, Lookup, await_end, first_error, raise_if
from infinistore.errors import UsageError


def connect(
    url: str,
    namespace: str = "default",
    token: str | None = None,
    *,
    transport: str | None = None,
    **settings: Any,
) -> Client:
    """Connects to a server, `infinistore://host[:port]`, and waits until it has answered.

    By TLS: `infinistores://`. Keys live in `namespace`. `transport` is "auto" (shared memory on
    the same machine, else RDMA if both ends have it, else TCP), "shm", "rdma" or "tcp"; the other
    settings are the fields of `ClientConfig`; what is not given comes from INFINISTORE_* and its
    default. Raises `ConnectError`, `AuthError`, `UsageError`.
    """
    return Client(open_native(url, namespace, token, transport, settings)())


class Client:
    """One server, for any number of threads. Made by `connect()`; ended by `close()` or `with`.

    If the connection is lost, what is in flight fails as `LinkError`; later calls connect anew.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def write_cache(
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
    ) -> Batch:
        """Writes blocks of `cache`, `page_size` long each, under their keys; returns at once.

        `blocks` is [(key, offset)] or `Blocks`. Offsets and `page_size` count elements of `cache`
        (bytes, where it has no type), or bytes with unit="bytes". A key that is there already moves
        nothing (`Code.EXISTS`) unless on_exists="replace". With `value_bytes` a block is the part
        of its value from `value_offset` on, and the value is complete when all parts have come.
        `parents` and `depths` say which block each follows in its chain.
        The cache must not change until the batch is done. Raises `UsageError` before anything is
        sent.
        """
        return self._session.put_blocks(
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

    def read_cache(
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
    ) -> Batch:
        """Reads blocks into `cache`, placed as in `write_cache`; returns at once.

        A missing key's bytes of `cache` are untouched, those of a failed one are undefined.
        `value_bytes`, if given, must be the stored size. `wait_s` waits so long for keys that are
        being written; `lease_id` is of the lookup that pinned them. With `up_to` a page is the most
        that fits: a shorter value is read whole, of a longer one the beginning, and the batch's
        `value_bytes` tells how long each is.
        """
        return self._session.get_blocks(
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

    def write_segments(
        self,
        keys: Sequence[Key],
        segments: Segments,
        *,
        value_bytes: int | None = None,
        value_offset: int = 0,
        on_exists: str = "keep",
        parents: Sequence[Key | None] | None = None,
        depths: Sequence[int] | None = None,
    ) -> Batch:
        """Writes a range of each value, gathered from raw memory; else as `write_cache`."""
        return self._session.put_segments(
            keys,
            segments,
            value_bytes=value_bytes,
            value_offset=value_offset,
            on_exists=on_exists,
            parents=parents,
            depths=depths,
        )

    def read_segments(
        self,
        keys: Sequence[Key],
        segments: Segments,
        *,
        value_offset: int = 0,
        value_bytes: int | None = None,
        wait_s: float = 0.0,
        lease_id: int = 0,
        up_to: bool = False,
    ) -> Batch:
        """Reads a range of each value, scattered to raw memory; else as `read_cache`."""
        return self._session.get_segments(
            keys,
            segments,
            value_bytes=value_bytes,
            value_offset=value_offset,
            wait_s=wait_s,
            lease_id=lease_id,
            up_to=up_to,
        )

    def prepare_device(self, device: int) -> None:
        """Shows the server's pool to a CUDA device now: else it is done part by part, as used.

        Waits, some 0.04 s for each GiB. Raises `SetupError` if CUDA cannot be used.
        """
        self._session.prepare_device(device)

    def expect_coroutines(self) -> None:
        """Makes `Batch.wait_async()` quick from the first batch on, that would need a thread."""
        _ = self._session.waiters

    def sync(self, timeout_s: float | None = None) -> None:
        """Waits for all batches that were not waited for, then raises the first failure, if any.

        After it all of them are settled: the next `sync()` tells of later batches only. Raises
        `KeyNotFound` if nothing worse happened than missing keys; `RequestTimeoutError` if some
        batch is not done in time, which a later `sync()` waits for again.
        """
        self._session.check_open()
        end = None if timeout_s is None else time.monotonic() + timeout_s
        batches = self._session.take_pending()
        try:
            for batch in batches:
                await_end(batch, None if end is None else max(0.0, end - time.monotonic()))
        except BaseException:
            self._session.put_back(batches)
            raise
        raise_if(first_error(batches))

    def match_prefix(self, keys: Sequence[Key]) -> int:
        """How many of `keys`, from the first on, are all there: exact, at one moment."""
        return self._session.lookup(keys, 1, None).wait()

    def lookup(
        self, keys: Sequence[Key], *, group: int = 1, lease_s: float | None = None
    ) -> Lookup:
        """Asks how many blocks, from the first on, are there; returns at once.

        A block is `group` keys, and there if all of them are. With `lease_s` what was found cannot
        be evicted for so long, until `release()`.
        """
        return self._session.lookup(keys, group, lease_s)

    def renew(self, lease_ids: Sequence[int], lease_s: float) -> None:
        """Makes leases end in `lease_s` from now; returns at once, and a lost link is no error."""
        self._session.post_lease(lease_ids, lease_s)

    def release(self, lease_ids: Sequence[int]) -> None:
        """Ends leases; returns at once, and a lost link is no error: they end by themselves."""
        self._session.post_lease(lease_ids, None)

    def exists(self, keys: Sequence[Key]) -> list[bool]:
        """Whether each key is there."""
        return self._session.take_exists(_ended(self._session.exists(keys)))

    def delete(self, keys: Sequence[Key]) -> int:
        """Erases keys; how many were there."""
        return self._session.take_count(_ended(self._session.erase(keys)))

    def abort(self, keys: Sequence[Key]) -> None:
        """Drops values that this client has begun and not completed."""
        self._session.take_count(_ended(self._session.abort(keys)))

    def register(self, cache: Any) -> None:
        """Keeps `cache` alive, and registered for RDMA, until `unregister` or `close`.

        Other memory is registered for each request, which costs more than the transfer where blocks
        are small. Over other transports, and for GPUs' memory, nothing has to be done.
        """
        self._session.register(cache)

    def unregister(self, cache: Any) -> None:
        """Lets go of what `register` keeps."""
        self._session.unregister(cache)

    def stats(self) -> dict[str, int]:
        """Counters of the server, and of this client (client_*)."""
        call = self._session.stats()
        call.wait(None)
        return self._session.take_stats(call)

    @property
    def transport(self) -> str:
        """What moves the bytes now: "shm", "rdma" or "tcp"."""
        return str(self._session.server()["transport"])

    @property
    def server(self) -> dict[str, Any]:
        """What the server said: incarnation, version, pool_bytes, transport, read_only."""
        return self._session.server()

    def close(self) -> None:
        """Ends what is in flight as `Code.CLOSED`, and the connection. Call `sync()` before."""
        if self._session.begin_close():
            self._session.native.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None and not self._session.is_closed:
                self.sync()
        finally:
            self.close()

    def __reduce__(self) -> NoReturn:
        raise UsageError("a client cannot be pickled; pass the address, and connect() there")

    def __repr__(self) -> str:
        return f"<infinistore.Client of {self._session.url}>"


def _ended(call: NativeCall | None) -> NativeCall | None:
    if call is not None:
        call.wait(None)
    return call
