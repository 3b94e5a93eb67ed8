"""Which upstream gets a request, and when a failed one may come back: pure, on plain values."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class Standing(enum.Enum):
    """What the router thinks of an upstream."""

    UP = "up"
    DOWN = "down"


@dataclasses.dataclass(frozen=True, slots=True)
class Health:
    """The record of one upstream; changed only by the functions below."""

    standing: Standing = Standing.UP
    failures: int = 0  # requests or probes failed in a row since the last request that worked
    missed_probes: int = 0  # probes in a row that found it up but got no answer in time
    retry_at_s: float = 0.0  # when a down upstream may be probed


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """What choosing looks at in one upstream."""

    health: Health
    in_flight: int
    last_turn: int  # 0: never chosen
    shared: int = 0  # first pieces of the prompt that it was asked for before


@dataclasses.dataclass(frozen=True, slots=True)
class BackOff:
    """Doubling wait between a failure and the next probe."""

    min_s: float
    max_s: float

    def after(self, failures: int) -> float:
        """The wait after so many failures in a row (at least one)."""
        # 2**32 times any minimum is past any maximum, and keeps the float finite.
        return min(self.max_s, self.min_s * 2.0 ** min(failures - 1, 32))


# One late answer may be a busy machine, two in a row are a server that hangs.
MISSED_PROBES_MAX = 2


def choose(
    loads: Sequence[Load],
    *,
    excluded: Collection[int] = (),
    even_down: bool = False,
    prefix_slack: int = 0,
) -> int | None:
    """The index of the upstream that likely has most of the prompt in its cache.

    Among those with at most `prefix_slack` more requests in flight than the least loaded: a warm
    cache saves a load, a queue costs a turn. On a tie it is the one with the fewest in flight, then
    the longest unused.

    Only those that are up and not `excluded`. With `even_down`, the down ones follow when none is
    up: for decode a long shot is better than a refusal. None if there is none.
    """
    candidates = [index for index in range(len(loads)) if index not in excluded]
    up = [index for index in candidates if loads[index].health.standing is Standing.UP]
    pool = up or (candidates if even_down else [])
    if not pool:
        return None
    most = min(loads[index].in_flight for index in pool) + prefix_slack

    def rank(index: int) -> tuple[int, int, int, int]:
        load = loads[index]
        return -load.shared, load.in_flight, load.last_turn, index

    return min((index for index in pool if loads[index].in_flight <= most), key=rank)


def failed(health: Health, now_s: float, back_off: BackOff) -> Health:
    """After a request or a probe found it dead: down, for longer each time."""
    failures = health.failures + 1
    return Health(Standing.DOWN, failures, 0, now_s + back_off.after(failures))


def worked(health: Health) -> Health:
    """After a request was answered: up, and trusted again."""
    return health if health == Health() else Health()


def probed(health: Health, *, answered: bool) -> Health | None:
    """After a probe: the new record, or None where it must count as a failure.

    A good probe brings a down upstream back but does not forgive its failures: one whose health
    page answers while its engine hangs would else cost a full deadline again and again.
    """
    if answered:
        return dataclasses.replace(health, standing=Standing.UP, missed_probes=0)
    if health.standing is Standing.DOWN or health.missed_probes + 1 >= MISSED_PROBES_MAX:
        return None
    return dataclasses.replace(health, missed_probes=health.missed_probes + 1)


def is_probe_due(health: Health, now_s: float) -> bool:
    """Up ones are looked at on every round, down ones when their back-off has passed."""
    return health.standing is Standing.UP or now_s >= health.retry_at_s
