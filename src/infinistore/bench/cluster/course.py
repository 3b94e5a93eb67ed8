"""One course of a simulated cluster: the hot set changes, nodes go and come, it cools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from infinistore.bench.cluster.readers import Numbers
from infinistore.bench.cluster.simulated import Machine, SimulatedCluster
from infinistore.cluster.spreading import SpreadLimits

WARM_S = 16.0
MEASURE_S = 6.0
SETTLE_S = 12.0
COOL_S = 14.0
WINDOW_S = 2.0  # of what is looked at for a recovery
IMBALANCE_MAX = 1.25


@dataclass(frozen=True, slots=True)
class Moment:
    """One window of the course with spreading."""

    at_s: float
    phase: str
    imbalance: float
    copies: int
    moved_bytes: float


@dataclass(slots=True)
class Found:
    """What a course has shown. Imbalance is the busiest node's bytes over the mean."""

    nodes: int
    load: str
    groups: int
    without: float = 0.0
    with_spreading: float = 0.0
    copies: int = 0
    copied_bytes: float = 0.0  # to warm up
    change_s: float = 0.0
    changed: float = 0.0
    crash_s: float = 0.0
    crashed: float = 0.0
    join_part: float = 0.0  # of all data
    join_s: float = 0.0  # at the capped rate
    join_share: float = 0.0  # of the new node, over the mean
    drained: float = 0.0
    cool_s: float = 0.0
    copies_left: int = 0
    moments: list[Moment] = field(default_factory=list)


def imbalance(served: Numbers, nodes: list[bool]) -> float:
    """Of bytes served, (steps, nodes), by the nodes that are there."""
    total = served.sum(axis=0)[np.flatnonzero(nodes)]
    return float(total.max() / total.mean()) if total.any() else 1.0


def run_course(
    load: str,
    weights: Numbers,
    nodes: int,
    machine: Machine,
    on_phase: Callable[[str], None] = lambda phase: None,
    seed: int = 1,
) -> Found:
    """The whole course, without spreading for its first part and with it."""
    found = Found(nodes, load, len(weights))
    on_phase("without spreading")
    off = SimulatedCluster(nodes, weights, machine, None, seed)
    off.run(WINDOW_S)
    found.without = imbalance(off.run(MEASURE_S), off.is_up)
    cluster = SimulatedCluster(nodes, weights, machine, SpreadLimits(), seed)
    course = _Course(cluster, found)
    for phase, step in course.phases():
        on_phase(phase)
        step()
    return found


class _Course:
    def __init__(self, cluster: SimulatedCluster, found: Found) -> None:
        self._cluster = cluster
        self._found = found

    def phases(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """In their order."""
        yield "warm up", self._warm_up
        yield "hot set changes", self._change
        yield "crash", self._crash
        yield "join", self._join
        yield "drain", self._drain
        yield "cool", self._cool

    def _watch(self, phase: str, seconds: float) -> list[Moment]:
        moments = []
        for _ in range(round(seconds / WINDOW_S)):
            served = self._cluster.run(WINDOW_S)
            moments.append(
                Moment(
                    round(self._cluster.now_s, 1),
                    phase,
                    round(imbalance(served, self._cluster.is_up), 3),
                    self._cluster.copy_count,
                    self._cluster.moved_bytes,
                )
            )
        self._found.moments += moments
        return moments

    def _settled(self) -> float:
        return imbalance(self._cluster.run(MEASURE_S), self._cluster.is_up)

    def _warm_up(self) -> None:
        self._watch("warm up", WARM_S)
        self._found.copied_bytes = self._cluster.moved_bytes
        self._found.with_spreading = self._settled()
        self._found.copies = self._cluster.copy_count

    def _change(self) -> None:
        """What was hot is not, and others are: those that were in the middle."""
        weights = self._cluster.weights
        self._cluster.weights = np.roll(weights, len(weights) // 2)
        self._found.change_s = _back_s(self._watch("hot set changes", SETTLE_S))
        self._found.changed = self._settled()

    def _crash(self) -> None:
        """Of the node with most copies."""
        held = np.zeros(len(self._cluster.names), dtype=np.intp)
        for holders in self._cluster.made.values():
            held[holders] += 1
        self._cluster.leave(int(held.argmax()), is_crash=True)
        self._found.crash_s = _back_s(self._watch("crash", SETTLE_S))
        self._found.crashed = self._settled()

    def _join(self) -> None:
        size, self._found.join_s = self._cluster.join()
        data = self._found.groups * self._cluster.machine.group_bytes
        self._found.join_part = size / data
        self._watch("join", SETTLE_S)
        served = self._cluster.run(MEASURE_S).sum(axis=0)[np.flatnonzero(self._cluster.is_up)]
        self._found.join_share = float(served[-1] / served.mean())

    def _drain(self) -> None:
        self._cluster.leave(len(self._cluster.names) - 1, is_crash=False)
        self._watch("drain", SETTLE_S / 2)
        self._found.drained = self._settled()

    def _cool(self) -> None:
        self._cluster.bytes_per_s = 0.0  # nobody reads any more
        moments = self._watch("cool", COOL_S)
        start_s = moments[0].at_s - WINDOW_S
        done = [moment.at_s - start_s for moment in moments if not moment.copies]
        self._found.cool_s = done[0] if done else float("inf")
        self._found.copies_left = self._cluster.copy_count


def _back_s(moments: list[Moment]) -> float:
    """When the first window ends in which the load is balanced."""
    start_s = moments[0].at_s - WINDOW_S
    back = [m.at_s - start_s for m in moments if m.imbalance <= IMBALANCE_MAX]
    return round(back[0], 1) if back else float("inf")
