"""The proxy of the chaos harness: each of its faults is seen at the other end, as what it is."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import wire_client as wire
from chaos.frames import FrameTracker, whole_frames
from chaos.proxy import (
    BAD_BODY,
    BAD_HEADER,
    BAD_PAYLOAD,
    CUT,
    CUT_IN_FRAME,
    DELAY,
    DUPLICATE,
    FAULTS,
    REORDER,
    STALL,
    TRICKLE,
    Proxy,
)
from waiting import until

BODY = bytes(range(1, 41))
PAYLOAD = bytes(range(256)) * 40
FRAME = wire.frame(wire.FILL, 7, BODY, PAYLOAD)
PARTS = {BAD_HEADER: (0, 32), BAD_BODY: (32, 72), BAD_PAYLOAD: (72, len(FRAME))}


class Sink:
    """A server that keeps what it receives on one connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.received = b""
        self.end = ""
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def target(self) -> tuple[str, int]:
        return "127.0.0.1", int(self._listener.getsockname()[1])

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        with peer:
            try:
                while chunk := peer.recv(1 << 20):
                    self.received += chunk
                self.end = "closed"
            except ConnectionResetError:
                self.end = "reset"

    def close(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._listener.close()


@pytest.fixture
def spoilt() -> Iterator[Callable[[str], tuple[Sink, socket.socket, Proxy]]]:
    """A connection through a proxy that has done the given fault once to frames sent over it."""
    opened: list[tuple[Sink, socket.socket, Proxy]] = []

    def open_one(kind: str) -> tuple[Sink, socket.socket, Proxy]:
        sink = Sink()
        proxy = Proxy(sink.target, seed=kind, interval_s=0.01, kinds=(kind,))
        near = socket.create_connection(proxy.address.split(":"))
        opened.append((sink, near, proxy))
        return opened[-1]

    yield open_one
    for sink, near, proxy in opened:
        near.close()
        sink.close()
        proxy.stop()
        assert proxy.error is None


def send_until_done(near: socket.socket, proxy: Proxy, kind: str, data: bytes = FRAME) -> int:
    """Sends frames until the fault has been done to one; how many."""
    sent = 0
    end = time.monotonic() + 10
    while proxy.counts[kind] == 0:
        assert time.monotonic() < end, "the fault was not done"
        try:
            near.sendall(data)
        except OSError:  # it was cut
            if not kind:
                raise
            break
        sent += 1
        time.sleep(0.005)
    return sent


@pytest.mark.parametrize("kind", [BAD_HEADER, BAD_BODY, BAD_PAYLOAD])
def test_one_bit_of_the_part_is_changed(kind: str, spoilt: Callable[..., tuple]) -> None:
    sink, near, proxy = spoilt(kind)
    sent = send_until_done(near, proxy, kind)
    with proxy.calm():
        until(lambda: len(sink.received) == sent * len(FRAME))
        wrong = [
            (at % len(FRAME), byte ^ FRAME[at % len(FRAME)])
            for at, byte in enumerate(sink.received)
            if byte != FRAME[at % len(FRAME)]
        ]
    assert len(wrong) == proxy.counts[kind]
    for at, bits in wrong:
        begin, end = PARTS[kind]
        assert begin <= at < end
        assert bits.bit_count() == 1


@pytest.mark.parametrize("kind", [CUT, CUT_IN_FRAME])
def test_both_ends_of_a_cut_connection_see_a_reset(kind: str, spoilt: Callable[..., tuple]) -> None:
    sink, near, proxy = spoilt(kind)
    send_until_done(near, proxy, kind)
    until(lambda: sink.end == "reset")
    near.settimeout(10)
    # The end is told once, to whichever call comes first; the next ones see a closed connection.
    with pytest.raises(ConnectionError):
        send_until_done(near, proxy, "")


def test_a_stalled_connection_stays_open_and_its_bytes_come_later(
    spoilt: Callable[..., tuple],
) -> None:
    sink, near, proxy = spoilt(STALL)
    sent = send_until_done(near, proxy, STALL)
    before = len(sink.received)
    time.sleep(0.2)
    assert len(sink.received) == before < sent * len(FRAME)
    assert sink.end == ""
    with proxy.calm():
        until(lambda: len(sink.received) == sent * len(FRAME))
        assert sink.received == FRAME * sent


@pytest.mark.parametrize("kind", [DELAY, TRICKLE])
def test_slow_bytes_all_come(kind: str, spoilt: Callable[..., tuple]) -> None:
    sink, near, proxy = spoilt(kind)
    sent = send_until_done(near, proxy, kind)
    until(lambda: len(sink.received) == sent * len(FRAME), 20)
    assert sink.received == FRAME * sent


def test_duplicated_bytes_come_twice(spoilt: Callable[..., tuple]) -> None:
    sink, near, proxy = spoilt(DUPLICATE)
    sent = send_until_done(near, proxy, DUPLICATE)
    with proxy.calm():
        until(lambda: len(sink.received) > sent * len(FRAME))


def test_reordered_bytes_all_come_but_elsewhere(spoilt: Callable[..., tuple]) -> None:
    sink, near, proxy = spoilt(REORDER)
    sent = send_until_done(near, proxy, REORDER)
    with proxy.calm():
        until(lambda: len(sink.received) == sent * len(FRAME))
    assert sink.received != FRAME * sent
    assert sorted(sink.received) == sorted(FRAME * sent)


def test_every_fault_has_a_test() -> None:
    tested = {BAD_HEADER, BAD_BODY, BAD_PAYLOAD, CUT, CUT_IN_FRAME}
    assert tested | {STALL, DELAY, TRICKLE, DUPLICATE, REORDER} == set(FAULTS)


def test_frames_are_found_wherever_a_stream_is_cut() -> None:
    chance = random.Random(5)
    frames = [
        wire.frame(wire.PING, 1),
        wire.frame(wire.EXISTS, 2, BODY),
        FRAME,
        wire.frame(wire.DATA, 3, b"", PAYLOAD),
    ] * 5
    stream = b"".join(frames)
    tracker = FrameTracker()
    found: dict[int, dict[str, bytes]] = {}
    at = 0
    while at < len(stream):
        chunk = stream[at : at + chance.choice((1, 7, 31, 32, 33, 4000))]
        at += len(chunk)
        for part in tracker.feed(chunk):
            kinds = found.setdefault(part.frame, {"header": b"", "body": b"", "payload": b""})
            kinds[part.kind] += chunk[part.begin : part.end]
    assert [b"".join(found[number].values()) for number in range(len(frames))] == frames
    assert [len(found[number]["header"]) for number in range(len(frames))] == [32] * len(frames)


def test_whole_frames_of_a_chunk() -> None:
    tracker = FrameTracker()
    small = wire.frame(wire.EXISTS, 2, BODY)
    chunk = FRAME[-100:] + small + FRAME + small[:-1]
    tracker.feed(FRAME[:-100])
    begins = [100, 100 + len(small), 100 + len(small) + len(FRAME)]
    assert whole_frames(tracker.feed(chunk)) == [(begins[0], begins[1]), (begins[1], begins[2])]
