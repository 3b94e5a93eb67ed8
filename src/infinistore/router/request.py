"""RoutedRequest: a client's request on its way, and what became of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from infinistore.router.bodies import JsonObject


@dataclasses.dataclass(slots=True)
class RoutedRequest:
    """Made once the body is read; the rest is filled in as it goes. Times in seconds."""

    identity: str
    path: str
    body: JsonObject
    headers: Mapping[str, str]  # for the upstreams
    pieces: Sequence[bytes] = ()  # see prefixes.prompt_pieces
    prefill: str = ""  # URL of the server that answered
    prefill_s: float | None = None
    decode: str = ""
    first_byte_s: float | None = None

    def log_line(self, outcome: str, total_s: float) -> str:
        """What the access log keeps of it: a JSON object, without any of its content."""
        line = {
            "request_id": self.identity,
            "path": self.path,
            "outcome": outcome,
            "prefill": self.prefill or None,
            "prefill_s": _rounded(self.prefill_s),
            "decode": self.decode or None,
            "first_byte_s": _rounded(self.first_byte_s),
            "total_s": _rounded(total_s),
        }
        return json.dumps(line)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
