"""Where frames, their headers, bodies and payloads begin and end in a stream of bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass

HEADER_BYTES = 32
_LENGTHS = struct.Struct("<16xI4xQ")  # of body and payload

HEADER, BODY, PAYLOAD = "header", "body", "payload"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a chunk that lies in one part of one frame."""

    kind: str
    begin: int
    end: int
    frame: int  # counted from the stream's first
    starts_frame: bool
    ends_frame: bool


class FrameTracker:
    """Fed with a stream chunk by chunk, says what each chunk is made of."""

    def __init__(self) -> None:
        self._header = b""
        self._left = {BODY: 0, PAYLOAD: 0}
        self._kind = HEADER
        self._frame = 0

    def feed(self, chunk: bytes) -> list[Part]:
        parts, at = [], 0
        while at < len(chunk):
            kind, frame = self._kind, self._frame
            starts = kind == HEADER and not self._header
            size = min(self._wanted(), len(chunk) - at)
            self._take(chunk[at : at + size])
            parts.append(Part(kind, at, at + size, frame, starts, self._frame > frame))
            at += size
        return parts

    def _wanted(self) -> int:
        return HEADER_BYTES - len(self._header) if self._kind == HEADER else self._left[self._kind]

    def _take(self, piece: bytes) -> None:
        if self._kind == HEADER:
            self._header += piece
            if len(self._header) < HEADER_BYTES:
                return
            self._left[BODY], self._left[PAYLOAD] = _LENGTHS.unpack(self._header)
            self._header = b""
            self._kind = BODY
        else:
            self._left[self._kind] -= len(piece)
        if self._kind == BODY and self._left[BODY] == 0:
            self._kind = PAYLOAD
        if self._kind == PAYLOAD and self._left[PAYLOAD] == 0:
            self._kind = HEADER
            self._frame += 1


def whole_frames(parts: list[Part]) -> list[tuple[int, int]]:
    """Begin and end of the frames that lie in a chunk as a whole."""
    begins = {part.frame: part.begin for part in parts if part.starts_frame}
    return [
        (begins[part.frame], part.end) for part in parts if part.ends_frame and part.frame in begins
    ]
