"""Coroutines, of any event loops, that wait for batches of a client for threads.

The native side writes an eventfd when something has ended. A loop watches it while one of its
coroutines waits, and whoever comes first wakes those of all loops.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

from infinistore.client.native import NativeBatch, NativeClient


class Waiters:
    """Who waits for which operation of one client."""

    def __init__(self, native: NativeClient) -> None:
        self._native = native
        self._fd = native.completion_fd()
        self._lock = threading.Lock()
        self._ended: dict[int, asyncio.Future[None]] = {}
        self._waiting: dict[asyncio.AbstractEventLoop, int] = {}

    async def end_of(self, batch: NativeBatch, is_told: bool) -> None:
        """Returns when the batch has ended; cancelled, it ends it and waits for the fence first.

        `is_told`: this object was there when it was submitted. Else only a thread can wait for it.
        """
        loop = asyncio.get_running_loop()
        if not is_told:
            if not batch.done:
                await _fenced(batch, loop.run_in_executor(None, batch.wait, None))
            return
        ended: asyncio.Future[None] = loop.create_future()
        self._enter(loop, batch.id, ended)
        try:
            if not batch.done:  # else its end may have been told before we were on the table
                await _fenced(batch, ended)
        finally:
            self._leave(loop, batch.id)

    def _enter(
        self, loop: asyncio.AbstractEventLoop, number: int, ended: asyncio.Future[None]
    ) -> None:
        with self._lock:
            self._ended[number] = ended
            count = self._waiting[loop] = self._waiting.get(loop, 0) + 1
        if count == 1:
            loop.add_reader(self._fd, self.drain)

    def _leave(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        with self._lock:
            self._ended.pop(number, None)
            self._waiting[loop] -= 1
            is_last = self._waiting[loop] == 0
            if is_last:
                del self._waiting[loop]
        if is_last:
            loop.remove_reader(self._fd)

    def drain(self) -> None:
        """Wakes who waits for what has ended. Any thread may call it."""
        numbers = self._native.take_completed()
        if not numbers:
            return
        with self._lock:
            ended = [self._ended.pop(number) for number in numbers if number in self._ended]
        for future in ended:
            with contextlib.suppress(RuntimeError):  # its loop is closed: nobody waits any more
                future.get_loop().call_soon_threadsafe(_resolve, future)


async def _fenced(batch: NativeBatch, ended: asyncio.Future[Any]) -> None:
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        batch.cancel()
        while not batch.done:
            # The fence comes soon, by itself: a second cancellation has to wait for it too.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(ended)
        raise


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
