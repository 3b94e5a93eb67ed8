"""RouterMetrics: what the router counts, and its Prometheus text."""

from __future__ import annotations

import bisect
import collections
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_PREFIX = "infinistore_router_"


def _label(text: str) -> str:
    """A label's value, escaped as the exposition format asks."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _labels(pairs: Mapping[str, str]) -> str:
    inner = ",".join(f'{name}="{_label(value)}"' for name, value in pairs.items())
    return f"{{{inner}}}" if inner else ""


class Histogram:
    """Seconds, counted in fixed buckets."""

    def __init__(self) -> None:
        """Starts empty."""
        self._counts = [0] * (len(_BOUNDS_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one duration."""
        self._counts[bisect.bisect_left(_BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def lines(self, name: str, help_text: str) -> Iterable[str]:
        """The histogram in exposition format: buckets are cumulative there."""
        yield f"# HELP {_PREFIX}{name} {help_text}"
        yield f"# TYPE {_PREFIX}{name} histogram"
        total = 0
        for bound, count in zip((*map(str, _BOUNDS_S), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{_PREFIX}{name}_bucket{{le="{bound}"}} {total}'
        yield f"{_PREFIX}{name}_sum {self._sum_s:.6f}"
        yield f"{_PREFIX}{name}_count {total}"


class RouterMetrics:
    """Counters since the start; written by the event loop's thread alone."""

    def __init__(self) -> None:
        """Starts at zero."""
        self.requests: collections.Counter[str] = collections.Counter()
        self.prefills: collections.Counter[tuple[str, str]] = collections.Counter()
        self.decodes: collections.Counter[tuple[str, str]] = collections.Counter()
        self.prefill_s = Histogram()
        self.first_byte_s = Histogram()
        self.in_flight = 0

    def text(
        self, upstreams: Iterable[tuple[str, str, bool, int]], by_prefix: Mapping[str, int]
    ) -> str:
        """Prometheus text; `upstreams` are (role, url, is up, requests in flight)."""
        lines: list[str] = []

        def family(
            name: str, kind: str, help_text: str, rows: Iterable[tuple[dict[str, str], int]]
        ) -> None:
            lines.append(f"# HELP {_PREFIX}{name} {help_text}")
            lines.append(f"# TYPE {_PREFIX}{name} {kind}")
            lines.extend(f"{_PREFIX}{name}{_labels(pairs)} {value}" for pairs, value in rows)

        def by_upstream(
            counter: collections.Counter[tuple[str, str]],
        ) -> list[tuple[dict[str, str], int]]:
            return [
                ({"upstream": url, "outcome": outcome}, count)
                for (url, outcome), count in sorted(counter.items())
            ]

        table = list(upstreams)
        family(
            "requests_total",
            "counter",
            "Client requests by how they ended.",
            [({"outcome": outcome}, count) for outcome, count in sorted(self.requests.items())],
        )
        family(
            "prefill_requests_total",
            "counter",
            "Requests sent to a prefill server, by outcome.",
            by_upstream(self.prefills),
        )
        family(
            "decode_requests_total",
            "counter",
            "Requests sent to a decode server, by outcome.",
            by_upstream(self.decodes),
        )
        family("in_flight", "gauge", "Client requests being served.", [({}, self.in_flight)])
        family(
            "upstream_up",
            "gauge",
            "1 if the server is in rotation.",
            [({"role": role, "upstream": url}, int(up)) for role, url, up, _ in table],
        )
        family(
            "upstream_in_flight",
            "gauge",
            "Requests in flight to the server.",
            [({"role": role, "upstream": url}, count) for role, url, _, count in table],
        )
        family(
            "prefix_choices_total",
            "counter",
            "Servers chosen because they were asked for more of the same prefix than others.",
            [({"role": role}, count) for role, count in by_prefix.items()],
        )
        lines.extend(self.prefill_s.lines("prefill_seconds", "Time of answered prefills."))
        lines.extend(
            self.first_byte_s.lines("first_byte_seconds", "Request read to first byte answered.")
        )
        return "\n".join(lines) + "\n"
