"""Which nodes to ask for which keys, in which order: a pure choice, from one moment's standings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infinistore.cluster.nodes import Node
from infinistore.cluster.placement import Ids, Placement

Numbers = npt.NDArray[np.int64]  # of members; NOBODY where there is none
NOBODY = -1
# A chooser gets the numbers of nodes that have the same group, and picks one.
Choose = Callable[[Sequence[int]], int]
# What a node of little load is taken to have to do, in bytes: below it no choice is worth making.
_LOAD_MIN = 1 << 18


@dataclass(frozen=True, slots=True)
class Standing:
    """One node, as its client sees it now."""

    node: Node
    number: int  # of the client's member for it
    is_up: bool = True  # it answers
    is_young: bool = False  # its groups' values may still be where they were before it came


class Routes:
    """The candidates of any group. Reads and writes take the first; the next if that has not.

    The owner acts; while it is away, the next in the order does. Until a node that has come is no
    longer young, what it lacks is looked for where the group was before, its former owner. Copies
    whose owner is gone are asked before the one that owns the group now, which may have nothing.
    """

    def __init__(
        self,
        standings: Sequence[Standing],
        copies: Mapping[int, Sequence[str]],
        replicas: int = 1,
        orphaned: Collection[int] = (),
    ) -> None:
        # If nobody answers all are asked: someone has to be the first to answer again.
        up = [standing for standing in standings if standing.is_up] or list(standings)
        acting = [s for s in up if s.node.state != "leaving"] or up
        settled = [s for s in up if not s.is_young and s.node.state != "joining"]
        owning = [s for s in standings if s.node.state != "leaving"] or list(standings)
        self._up = {standing.node.name: standing.number for standing in up}
        self._acting = _Order(acting)
        self._owning = _Order(owning) if owning != acting else self._acting
        self._settled = _Order(settled) if settled and settled != acting else None
        self._everyone = np.array([s.number for s in standings], dtype=np.int64)
        self._replicas = replicas
        self._orphaned = frozenset(orphaned)
        holders = {g: [self._up[n] for n in names if n in self._up] for g, names in copies.items()}
        self._copies = {group: numbers for group, numbers in holders.items() if numbers}
        self._copied = np.array(sorted(self._copies), dtype=np.uint64)

    def writers(self, ids: Ids) -> Numbers:
        """For each group the nodes to write to, (groups, replicas), and behind them the next."""
        return self._acting.first(ids, self._replicas + 1)

    def readers(self, ids: Ids, choose: Choose | None = None) -> Numbers:
        """For each group whom to ask, one after the other, as long as each has not.

        Without `choose` the owner comes first where it acts, else a copy.
        """
        acting = self._acting.first(ids, self._replicas)
        columns = [acting]
        if self._settled is not None:
            columns.append(self._settled.first(ids, 1))
        if acting.shape[1] > 1 and choose is not None:
            _, rows, back = np.unique(ids, return_index=True, return_inverse=True)
            chosen = np.array([choose(row) for row in acting[rows].tolist()], dtype=np.int64)
            columns.insert(0, chosen[back.reshape(-1)][:, None])
        if len(self._copied):
            columns.insert(0, self._from_copies(ids, acting, choose))
        return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)

    def holders(self, ids: Ids) -> Numbers:
        """For each group all nodes where its values may be: those that are away, too."""
        columns = [self._owning.first(ids, self._replicas + 1)]
        columns.append(self._acting.first(ids, self._replicas + 1))
        if self._settled is not None:
            columns.append(self._settled.first(ids, 1))
        if len(self._copied):
            width = max(len(numbers) for numbers in self._copies.values())
            copies = np.full((len(ids), width), NOBODY, dtype=np.int64)
            for index in np.flatnonzero(np.isin(ids, self._copied)):
                numbers = self._copies[int(ids[index])]
                copies[index, : len(numbers)] = numbers
            columns.append(copies)
        return np.concatenate(columns, axis=1)

    @property
    def everyone(self) -> Numbers:
        """All nodes."""
        return self._everyone

    def _from_copies(self, ids: Ids, acting: Numbers, choose: Choose | None) -> Numbers:
        """A node for each group that has copies, and for the others the one that acts."""
        chosen: Numbers = acting[:, :1].copy()
        hot = np.flatnonzero(np.isin(ids, self._copied))
        if not len(hot):
            return chosen
        owners = self._owning.first(ids[hot], 1)[:, 0]
        for group in np.unique(ids[hot]):
            rows = hot[ids[hot] == group]
            owner = int(acting[rows[0], 0])
            owner_acts = owner == owners[np.flatnonzero(hot == rows[0])[0]]
            owner_acts = owner_acts and int(group) not in self._orphaned
            copies = self._copies[int(group)]
            if choose is None:
                chosen[rows, 0] = owner if owner_acts else copies[0]
            else:
                having = [owner, *copies] if owner_acts else copies
                chosen[rows, 0] = choose(list(dict.fromkeys(having)))
        return chosen


class _Order:
    def __init__(self, standings: Sequence[Standing]) -> None:
        self._placement = Placement([standing.node for standing in standings])
        self._numbers = np.array([standing.number for standing in standings], dtype=np.int64)

    def first(self, ids: Ids, count: int) -> Numbers:
        if not len(self._numbers):
            return np.full((len(ids), 1), NOBODY, dtype=np.int64)
        return self._numbers[self._placement.first(ids, count)]


def untried(candidates: Numbers, tried: Numbers) -> Numbers:
    """For each row its first candidate that was not tried; NOBODY if there is none."""
    fresh = (candidates != NOBODY) & ~(candidates[:, :, None] == tried[:, None, :]).any(axis=2)
    rows = np.arange(len(candidates))
    column = fresh.argmax(axis=1)
    return np.where(fresh[rows, column], candidates[rows, column], NOBODY)


def choose_of_two(
    numbers: Sequence[int], load: Callable[[int], float], random: Callable[[], float]
) -> int:
    """One of the nodes, by the power of two choices: two by chance, and of them the less loaded.

    M. Mitzenmacher: "The power of two choices in randomized load balancing", IEEE Transactions on
    Parallel and Distributed Systems 12, 2001. Loads are known late, and by all clients alike: so
    the less loaded one is only taken the more often, or all would go over to it together. As the
    square of the loads: a simulation of 1,000 nodes comes to rest sooner than by the loads.
    """
    count = len(numbers)
    if count == 1:
        return numbers[0]
    first = int(random() * count) % count
    second = (first + 1 + int(random() * (count - 1)) % (count - 1)) % count
    one, other = numbers[first], numbers[second]
    one_load, other_load = (load(one) + _LOAD_MIN) ** 2, (load(other) + _LOAD_MIN) ** 2
    return one if random() * (one_load + other_load) < other_load else other
