"""A TCP proxy that does to streams what networks do, and worse: one fault at a time, by chance."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator

from chaos.frames import BODY, HEADER, PAYLOAD, FrameTracker, Part, whole_frames

DELAY, STALL, CUT, CUT_IN_FRAME = "delay", "stall", "cut", "cut in a frame"
BAD_HEADER, BAD_BODY, BAD_PAYLOAD = "changed header", "changed body", "changed payload"
DUPLICATE, REORDER, TRICKLE = "duplicate", "reorder", "slow reader"
FAULTS = (
    DELAY,
    STALL,
    CUT,
    CUT_IN_FRAME,
    BAD_HEADER,
    BAD_BODY,
    BAD_PAYLOAD,
    DUPLICATE,
    REORDER,
    TRICKLE,
)
_CHANGED = {BAD_HEADER: HEADER, BAD_BODY: BODY, BAD_PAYLOAD: PAYLOAD}

_CHUNK_BYTES = 65536
_PATIENCE_S = 0.7  # a fault that finds no fitting chunk in this time makes way for another
_TRICKLE_BYTES, _TRICKLE_S = 512, 0.005


class _Cut(Exception):
    """This link ends now, without a word."""


class _Flow:
    """One direction of a link, and the fault that waits for a chunk which it can be done to."""

    def __init__(self) -> None:
        self.tracker = FrameTracker()
        self.fault = ""
        self.armed_at = 0.0
        self.trickles_until = 0.0


class _Link:
    """A client's connection and ours to the server."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.near = near
        self.far = far
        self.flows = (_Flow(), _Flow())  # to the server, from it
        self.stalled_until = 0.0

    def close(self, *, is_rough: bool) -> None:
        for side in (self.near, self.far):
            if is_rough:  # RST, and what was sent and not read is lost
                with contextlib.suppress(OSError):
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            side.close()


class Proxy:
    """Listens on loopback and forwards to `target`; `interval_s` is between two faults.

    `kinds` that are done are counted in `counts`. Everything random comes from `seed`.
    """

    def __init__(
        self,
        target: tuple[str, int],
        seed: str,
        interval_s: float = 0.15,
        kinds: tuple[str, ...] = FAULTS,
    ) -> None:
        self.counts: Counter[str] = Counter({kind: 0 for kind in kinds})
        self.error: BaseException | None = None
        self._target = target
        self._chance = random.Random(seed)
        self._interval_s = interval_s
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_calm = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="chaos proxy", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"infinistore://{self.address}"

    @contextlib.contextmanager
    def calm(self) -> Iterator[None]:
        """No new fault, and none that lasts: for what is measured meanwhile."""
        self._is_calm = True
        try:
            yield
        finally:
            self._is_calm = False

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # the harness looks at it
            self.error = error
        finally:
            self._listener.close()
            self._loop.close()

    async def _serve(self) -> None:
        works = [asyncio.ensure_future(work) for work in (self._accept(), self._arm_faults())]
        stopped = asyncio.ensure_future(self._stop.wait())
        done, _ = await asyncio.wait([*works, stopped], return_when=asyncio.FIRST_COMPLETED)
        for task in [*works, stopped, *self._tasks]:
            task.cancel()
        await asyncio.gather(*works, stopped, *self._tasks, return_exceptions=True)
        for task in done:
            if task in works:
                task.result()

    async def _accept(self) -> None:
        while True:
            near, _ = await self._loop.sock_accept(self._listener)
            task = asyncio.ensure_future(self._forward_all(near))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _arm_faults(self) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * self._interval_s)
            flows = [flow for link in self._links for flow in link.flows]
            if self._is_calm or not flows:
                continue
            now = time.monotonic()
            waiting = {f.fault for f in flows if f.fault and now - f.armed_at < _PATIENCE_S}
            kinds = [kind for kind in self.counts if kind not in waiting]
            if kinds:
                fewest = min(self.counts[kind] for kind in kinds)
                flow = self._chance.choice(flows)
                flow.armed_at = now
                flow.fault = self._chance.choice([k for k in kinds if self.counts[k] == fewest])

    # ---- one link ----

    async def _forward_all(self, near: socket.socket) -> None:
        far = socket.socket()
        link = _Link(near, far)
        is_rough = False
        try:
            for side in (near, far):
                side.setblocking(False)
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(far, self._target)
            self._links.add(link)
            await self._forward_both(link)
        except (_Cut, OSError):
            is_rough = True
        finally:
            self._links.discard(link)
            link.close(is_rough=is_rough)

    async def _forward_both(self, link: _Link) -> None:
        there, back = link.flows
        pumps = [
            asyncio.ensure_future(self._pump(link, there, link.near, link.far)),
            asyncio.ensure_future(self._pump(link, back, link.far, link.near)),
        ]
        try:
            await asyncio.gather(*pumps)
        finally:  # no pump may wait for a socket that closes
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, link: _Link, flow: _Flow, source: socket.socket, target: socket.socket
    ) -> None:
        while True:
            trickles = time.monotonic() < flow.trickles_until and not self._is_calm
            if trickles:
                await asyncio.sleep(_TRICKLE_S)
            size = _TRICKLE_BYTES if trickles else _CHUNK_BYTES
            chunk = await self._loop.sock_recv(source, size)
            await self._wait_while_stalled(link)
            if not chunk:
                target.shutdown(socket.SHUT_WR)
                return
            parts = flow.tracker.feed(chunk)
            if flow.fault and not self._is_calm:
                chunk = await self._spoil(link, flow, chunk, parts, target)
            await self._loop.sock_sendall(target, chunk)

    async def _wait_while_stalled(self, link: _Link) -> None:
        # It is another thread that asks for calm: no asyncio.Event.
        while time.monotonic() < link.stalled_until and not self._is_calm:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    # ---- faults ----

    async def _spoil(
        self, link: _Link, flow: _Flow, chunk: bytes, parts: list[Part], target: socket.socket
    ) -> bytes:
        """Does the waiting fault if this chunk fits; what is to be forwarded then."""
        fault = flow.fault
        if fault in _CHANGED:
            changed = self._changed(chunk, parts, _CHANGED[fault])
        elif fault == CUT_IN_FRAME:
            changed = self._torn(chunk, parts)
        elif fault == REORDER:
            changed = self._reordered(chunk, parts)
        else:
            changed = self._duplicated(chunk, parts) if fault == DUPLICATE else chunk
        if changed is None:
            return chunk
        flow.fault = ""
        self.counts[fault] += 1
        if fault == CUT:
            raise _Cut
        if fault == CUT_IN_FRAME:
            await self._loop.sock_sendall(target, changed)
            raise _Cut
        await self._slow_down(link, flow, fault)
        return changed

    async def _slow_down(self, link: _Link, flow: _Flow, fault: str) -> None:
        if fault == DELAY:
            await asyncio.sleep(self._chance.uniform(0.01, 0.3))
        elif fault == STALL:  # neither end hears of it; around the client's deadline of 0.9 s
            link.stalled_until = time.monotonic() + self._chance.uniform(0.5, 2.0)
            await self._wait_while_stalled(link)
        elif fault == TRICKLE:
            flow.trickles_until = time.monotonic() + self._chance.uniform(0.3, 1.5)

    def _changed(self, chunk: bytes, parts: list[Part], kind: str) -> bytes | None:
        fitting = [part for part in parts if part.kind == kind]
        if not fitting:
            return None
        part = self._chance.choice(fitting)
        at = self._chance.randrange(part.begin, part.end)
        flipped = chunk[at] ^ 1 << self._chance.randrange(8)
        return chunk[:at] + bytes([flipped]) + chunk[at + 1 :]

    def _torn(self, chunk: bytes, parts: list[Part]) -> bytes | None:
        """Up to somewhere within a frame."""
        fitting = [part for part in parts if part.end - part.begin > 1]
        if not fitting:
            return None
        part = self._chance.choice(fitting)
        return chunk[: self._chance.randrange(part.begin + 1, part.end)]

    def _duplicated(self, chunk: bytes, parts: list[Part]) -> bytes:
        frames = whole_frames(parts)
        if frames and self._chance.random() < 0.5:
            begin, end = self._chance.choice(frames)
        else:
            begin = self._chance.randrange(len(chunk))
            end = self._chance.randint(begin + 1, len(chunk))
        return chunk[:end] + chunk[begin:]

    def _reordered(self, chunk: bytes, parts: list[Part]) -> bytes | None:
        frames = whole_frames(parts)
        if len(frames) > 1 and self._chance.random() < 0.7:
            at = self._chance.randrange(len(frames) - 1)
            (begin, middle), (_, end) = frames[at : at + 2]
        elif len(chunk) > 1:
            middle = self._chance.randrange(1, len(chunk))
            begin = self._chance.randrange(middle)
            end = self._chance.randint(middle + 1, len(chunk))
        else:
            return None
        return chunk[:begin] + chunk[middle:end] + chunk[begin:middle] + chunk[end:]
