"""Nodes and the bytes between them and their clients, in steps of simulated time.

Decisions are the real ones, and nodes know what nodes know: heat that halves, and notes as of the
last round. Clients choose by notes as old, and by what waits for them. A copy is readable once its
bytes have passed at the capped rate, and a round has told of it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from infinistore.bench.cluster.readers import Indexes, Numbers, Readers
from infinistore.cluster.heat import HeatMap, HotGroup
from infinistore.cluster.moves import copies_to_make
from infinistore.cluster.nodes import Node
from infinistore.cluster.placement import Placement
from infinistore.cluster.spreading import SpreadLimits, spread
from infinistore.cluster.view import Note

# What a client takes every node to have to do: as in routes.choose_of_two and member.load.
_LOAD_MIN = 1 << 18
_NOTE_S = 0.05


@dataclass(frozen=True, slots=True)
class Machine:
    """What simulated nodes are like."""

    bytes_per_s: float = 1e9  # of reads, for each node on average
    capacity: float = 4.0  # what a node can serve, in parts of that
    read_bytes: int = 1 << 18
    group_bytes: int = 8 << 20
    copy_bytes_per_s: float = 256 << 20  # that a node pushes at most
    room_bytes: int = 6 << 30  # for copies, on each node
    half_life_s: float = 1.0
    round_s: float = 0.5
    step_s: float = 0.1


@dataclass(slots=True)
class _Owner:
    """What a node has decided for its groups, and what it is about to push."""

    wanted: dict[int, tuple[str, ...]] = field(default_factory=dict)  # by the groups' ids
    queue: deque[tuple[int, str]] = field(default_factory=deque)
    begun_bytes: float = 0.0  # of the queue's first


class SimulatedCluster:
    """`weights` are the groups' parts of all reads. With `limits` None nothing is spread."""

    def __init__(
        self,
        nodes: int,
        weights: Numbers,
        machine: Machine,
        limits: SpreadLimits | None,
        seed: int = 1,
    ) -> None:
        self.machine, self.limits, self.weights = machine, limits, weights
        self.now_s = 0.0
        self.bytes_per_s = machine.bytes_per_s * nodes  # that clients read
        self.moved_bytes = 0.0  # in the background
        self.names = [_name(index) for index in range(nodes)]
        self.is_up = [True] * nodes
        self.made: dict[int, list[int]] = {}  # group -> nodes with a copy
        self._readers = Readers(seed)
        self.ids = self._readers.random.integers(0, 2**64, len(weights), dtype=np.uint64)
        self._index_of = {int(group): index for index, group in enumerate(self.ids)}
        self._owners = [_Owner() for _ in self.names]
        self._heat = np.zeros(len(weights))  # decayed bytes, of owners
        self._pair_heat = np.zeros(0)  # and of copies
        self._node_heat = np.zeros(nodes)
        self._waiting = np.zeros(nodes)  # bytes
        self._told = np.zeros(nodes)  # rates, as in the notes
        self._round_at_s = 0.0
        self.owner = self._place()
        self._readers.arrange(self.owner, self.made)

    @property
    def copy_count(self) -> int:
        return sum(len(nodes) for nodes in self.made.values())

    def run(self, seconds: float) -> Numbers:
        """Goes on for so long; the bytes that each node served, (steps, nodes)."""
        served = []
        for _ in range(round(seconds / self.machine.step_s)):
            if self.now_s >= self._round_at_s - 1e-9:
                self._round()
                self._round_at_s += self.machine.round_s
            served.append(self._step())
            self._push()
            self.now_s += self.machine.step_s
        return np.array(served)

    # ---- nodes come and go ----

    def join(self) -> tuple[float, float]:
        """A node comes and takes its share: bytes that move, and for how many seconds."""
        self.names.append(_name(len(self.names)))
        self.is_up.append(True)
        self._owners.append(_Owner())
        self._node_heat, self._waiting, self._told = (
            np.append(each, 0.0) for each in (self._node_heat, self._waiting, self._told)
        )
        sent = self._own_anew()
        return float(sent.sum()), float(sent.max()) / self.machine.copy_bytes_per_s

    def leave(self, node: int, *, is_crash: bool) -> tuple[float, float]:
        """A node goes: bytes that it moves before, if it can, and the most for one other node."""
        groups = self.owner == node
        self.is_up[node] = False
        for group in [group for group, nodes in self.made.items() if node in nodes]:
            self._forget(group, node)
        self._own_anew()
        self._owners[node] = _Owner()
        self._node_heat[node] = self._waiting[node] = self._told[node] = 0.0
        taken = np.bincount(self.owner[groups], minlength=len(self.names))
        size = 0.0 if is_crash else float(self.machine.group_bytes)
        self.moved_bytes += size * float(taken.sum())
        return size * float(taken.sum()), size * float(taken.max())

    def _own_anew(self) -> Numbers:
        """Owners as the nodes are now; what of each old one's they are: bytes.

        A new owner goes on with the copies of the old one, but for its own.
        """
        before, self.owner = self.owner, self._place()
        moved = np.flatnonzero(before != self.owner)
        for group in moved.tolist():
            new = int(self.owner[group])
            self._owners[before[group]].wanted.pop(int(self.ids[group]), None)
            if group in self.made and new in self.made[group]:
                self._forget(group, new)
            if group in self.made:
                names = tuple(self.names[node] for node in self.made[group])
                self._owners[new].wanted[int(self.ids[group])] = names
        self._arrange()
        sent = np.bincount(before[moved], minlength=len(self.names))
        sizes: Numbers = sent.astype(np.float64) * self.machine.group_bytes
        return sizes

    def _place(self) -> Indexes:
        up = np.flatnonzero(self.is_up)
        nodes = [Node(self.names[index], self.names[index]) for index in up]
        owners: Indexes = up[Placement(nodes).first(self.ids)[:, 0]]
        return owners

    # ---- a round: every node hears of all others, decides, and tells ----

    def _round(self) -> None:
        self._told = self._rate(self._node_heat)
        if self.limits is not None:
            hot, held = self._hot_groups(), self._held_groups()
            heat = HeatMap(
                self._note(node, hot[node], held[node])
                for node in range(len(self.names))
                if self.is_up[node]
            )
            for node, owner in enumerate(self._owners):
                if self.is_up[node]:
                    self._decide(self.names[node], owner, hot[node], heat)
            self._arrange()

    def _rate(self, heat: Numbers) -> Numbers:
        return heat * (math.log(2) / self.machine.half_life_s)

    def _hot_groups(self) -> list[dict[int, HotGroup]]:
        """Of each node what its sketch would show of its own groups, but for the lukewarm ones."""
        found: list[dict[int, HotGroup]] = [{} for _ in self.names]
        least = 0.01 * float(self._node_heat.mean())
        rates = self._rate(self._heat)
        shown = np.flatnonzero((self._heat > least) | ~self._readers.alone)
        for group, owner, rate in zip(
            self.ids[shown].tolist(), self.owner[shown].tolist(), rates[shown].tolist(), strict=True
        ):
            found[owner][group] = HotGroup(rate, self.machine.group_bytes)
        return found

    def _held_groups(self) -> list[dict[int, float]]:
        """Of each node what it serves of others' groups."""
        found: list[dict[int, float]] = [{} for _ in self.names]
        copies = np.flatnonzero(~self._readers.is_owner)
        rates = self._rate(self._pair_heat)
        for pair in copies.tolist():
            group = int(self.ids[self._readers.group[pair]])
            found[self._readers.node[pair]][group] = float(rates[pair])
        return found

    def _note(self, node: int, hot: dict[int, HotGroup], held: dict[int, float]) -> Note:
        made = {}
        for group in hot:
            if holders := self.made.get(self._index_of[group]):
                made[group] = tuple(self.names[holder] for holder in holders)
        return Note(
            self.names[node],
            copies=made,
            bytes_per_s=float(self._told[node]),
            served=held | {group: hot[group].rate for group in made},
            room_bytes=max(0, self.machine.room_bytes - len(held) * self.machine.group_bytes),
        )

    def _decide(self, name: str, owner: _Owner, hot: dict[int, HotGroup], heat: HeatMap) -> None:
        assert self.limits is not None
        before, owner.wanted = (
            owner.wanted,
            dict(spread(name, hot, owner.wanted, heat, self.limits)),
        )
        made = {}
        for group in {*before, *owner.wanted}:
            index, names = self._index_of[group], owner.wanted.get(group, ())
            for node in [n for n in self.made.get(index, ()) if self.names[n] not in names]:
                self._forget(index, node)
            made[group] = tuple(self.names[node] for node in self.made.get(index, ()))
        rates = {group: each.rate for group, each in hot.items()}
        queue = deque(copies_to_make(owner.wanted, made, rates))
        if not queue or not owner.queue or queue[0] != owner.queue[0]:
            owner.begun_bytes = 0.0
        owner.queue = queue

    # ---- bytes ----

    def _step(self) -> Numbers:
        machine, readers = self.machine, self._readers
        expected = self.weights * (self.bytes_per_s * machine.step_s / machine.read_bytes)
        # A client has its part of what waits: there are as many of them as nodes.
        seen = _LOAD_MIN + self._waiting / len(self.names) + self._told * _NOTE_S
        alone, pairs = readers.draw(expected, seen)
        size = float(machine.read_bytes)
        count = len(self.names)
        asked = np.bincount(self.owner, alone, count) + np.bincount(readers.node, pairs, count)
        self._waiting += asked * size
        most = machine.capacity * machine.bytes_per_s
        served = np.minimum(self._waiting, most * machine.step_s)
        # Nobody waits for longer than a second.
        self._waiting = np.minimum(self._waiting - served, most)
        part = np.divide(served, asked * size, out=np.ones(count), where=asked > 0)
        self._cool()
        self._node_heat += served
        self._heat += alone * size * part[self.owner]
        heat = pairs * size * part[readers.node]
        self._heat += np.bincount(readers.group, heat * readers.is_owner, len(self._heat))
        self._pair_heat += heat * ~readers.is_owner
        return served

    def _cool(self) -> None:
        cooling = 0.5 ** (self.machine.step_s / self.machine.half_life_s)
        for heat in (self._heat, self._pair_heat, self._node_heat):
            heat *= cooling

    def _push(self) -> None:
        for owner in self._owners:
            budget = self.machine.copy_bytes_per_s * self.machine.step_s if owner.queue else 0.0
            while owner.queue and budget > 0:
                part = min(budget, self.machine.group_bytes - owner.begun_bytes)
                owner.begun_bytes += part
                budget -= part
                self.moved_bytes += part
                if owner.begun_bytes >= self.machine.group_bytes:
                    group, name = owner.queue.popleft()
                    node = self.names.index(name)
                    if self.is_up[node]:
                        self.made.setdefault(self._index_of[group], []).append(node)
                    owner.begun_bytes = 0.0

    def _forget(self, group: int, node: int) -> None:
        self.made[group].remove(node)
        if not self.made[group]:
            del self.made[group]

    def _arrange(self) -> None:
        """Clients learn where copies are; what is known of the heat of pairs stays."""
        readers, count = self._readers, len(self.names)
        known = dict(
            zip((readers.group * 4096 + readers.node).tolist(), self._pair_heat, strict=True)
        )
        readers.arrange(self.owner, self.made)
        pairs = (readers.group * 4096 + readers.node).tolist()
        self._pair_heat = np.array([known.get(pair, 0.0) for pair in pairs])
        assert count < 4096


def _name(index: int) -> str:
    return f"node{index:04d}"
