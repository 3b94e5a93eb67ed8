"""Tells a client of the nodes in etcd: a reader of the registry on a thread of its own.

One thread serves all clients of a process: gRPC's asyncio part wants one event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading

from infinistore.cluster.members.etcd import etcd_registry, parse_etcd
from infinistore.cluster.members.membership import Membership, beat_s
from infinistore.cluster.members.registry import RegistryError
from infinistore.cluster.nodes import View
from infinistore.errors import ConfigError, ConnectError, LinkError, UsageError

READER_TTL_S = 5.0  # a reader has no lease: this sets how often it asks whether etcd is there
FIRST_VIEW_S = 5.0
MARK_S = 5.0  # for the registry to take a namespace in which values are replaced


class _Loop:
    """The event loop's thread; ends with the last who uses it."""

    def __init__(self) -> None:
        self.users = 0
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="infinistore-etcd", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.close()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


_lock = threading.Lock()
_shared: _Loop | None = None


def _acquire() -> _Loop:
    global _shared
    with _lock:
        if _shared is None or _shared.pid != os.getpid():  # a thread stays behind at a fork
            _shared = _Loop()
        _shared.users += 1
        return _shared


def _release(loop: _Loop) -> None:
    global _shared
    with _lock:
        loop.users -= 1
        if loop.users or loop.pid != os.getpid():
            return
        if _shared is loop:
            _shared = None
    loop.stop()


class EtcdSource:
    """`ViewSource` of `infinistore+etcd://...`."""

    def __init__(self, url: str, user: str = "", password: str = "") -> None:
        """Waits for the first view. Raises `UsageError`, `SetupError` or `ConnectError`."""
        try:
            address = parse_etcd(url, user, password)
            open_registry = etcd_registry(address, beat_s(READER_TTL_S))
        except ConfigError as error:
            raise UsageError(str(error)) from None
        self._view = View(())
        self._is_known = threading.Event()
        self._membership = Membership(open_registry, READER_TTL_S, self._take)
        self._loop: _Loop | None = _acquire()
        self._work = asyncio.run_coroutine_threadsafe(self._begin(), self._loop.loop).result()
        if not self._is_known.wait(FIRST_VIEW_S):
            problem = self._membership.problem or "no node has registered"
            self.close()
            raise ConnectError(f"{url} tells of no nodes in {FIRST_VIEW_S:g} s: {problem}")

    def current(self) -> View:
        return self._view

    @property
    def is_connected(self) -> bool:
        """Whether etcd answers now."""
        return self._membership.is_connected

    def tell_replacing(self, namespace: str) -> None:
        """Waits for the registry, unless it knew when it answered last. Raises `LinkError`."""
        if self._loop is None or namespace in self._membership.replacing:
            return
        marking = asyncio.run_coroutine_threadsafe(
            self._membership.mark_replacing(namespace), self._loop.loop
        )
        try:
            marking.result(MARK_S)
        except RegistryError as error:
            raise LinkError(str(error)) from error
        except concurrent.futures.TimeoutError:
            marking.cancel()
            raise LinkError(
                f"the registry has not answered for {MARK_S:.0f} s: a first replacement in the "
                f"namespace {namespace!r} has to be told to it; try again later"
            ) from None

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if loop.pid == os.getpid():
            asyncio.run_coroutine_threadsafe(_end(self._work), loop.loop).result()
        _release(loop)

    async def _begin(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._membership.run())

    def _take(self, view: View) -> None:
        self._view = view
        self._is_known.set()


async def _end(work: asyncio.Task[None]) -> None:
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
