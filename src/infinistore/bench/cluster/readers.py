"""Clients of a simulated cluster: how many reads go to which node, for every group. Vectorised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Indexes = npt.NDArray[np.intp]

_PARTNERS = 8  # drawn for each holder of a group, in place of every other holder


class Readers:
    """Reads by popularity; of nodes with the same group by the power of two choices.

    A pair is a group with copies and a node that has it; a group's owner is the first of its pairs.
    """

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def arrange(self, owner: Indexes, made: Mapping[int, Sequence[int]]) -> None:
        """From now on these are the nodes to ask."""
        groups = sorted(made)
        holders = [[int(owner[group]), *made[group]] for group in groups]
        counts = np.array([len(nodes) for nodes in holders], dtype=np.intp)
        starts = np.cumsum(counts) - counts
        self.owner = owner
        self.alone = np.ones(len(owner), dtype=bool)  # groups without copies
        self.alone[groups] = False
        self.group = np.repeat(np.array(groups, dtype=np.intp), counts)  # of each pair
        self.node = np.array([node for nodes in holders for node in nodes], dtype=np.intp)
        self.is_owner = np.zeros(len(self.group), dtype=bool)
        self.is_owner[starts] = True
        self._starts = starts
        self._count = np.repeat(counts, counts)
        self._start = np.repeat(starts, counts)

    def draw(self, expected: Numbers, loads: Numbers) -> tuple[Numbers, Numbers]:
        """Reads of each group by its owner, where it is alone, and of each pair.

        `expected` reads of each group; `loads` as clients see them.
        """
        alone = np.where(self.alone, self.random.poisson(expected), 0).astype(np.float64)
        if not len(self.group):
            return alone, np.zeros(0)
        # Parts of a Poisson stream are Poisson streams.
        parts = self.random.poisson(expected[self.group] * self._chances(loads))
        return alone, parts.astype(np.float64)

    def _chances(self, loads: Numbers) -> Numbers:
        """That a read of a pair's group goes to its node: `routes.choose_of_two`."""
        squares = loads**2
        own = squares[self.node]
        size = len(self.group)
        others = np.maximum(self._count - 1, 1)
        place = np.arange(size) - self._start
        chance = np.zeros(size)
        for _ in range(_PARTNERS):
            step = 1 + (self.random.random(size) * others).astype(np.intp)
            other = squares[self.node[self._start + (place + step) % self._count]]
            chance += other / (own + other)
        total = np.add.reduceat(chance, self._starts)
        parts: Numbers = chance / np.repeat(total, self._count[self._starts])
        return parts
