"""Whose a key is: weighted rendezvous hashing of its group. Pure, and equal in every process.

Each node has a score for each group, by a hash of both; a group's nodes are in the order of their
scores, and the first is its owner. So a node that goes leaves its groups to their next nodes, and
one that comes takes an even share from all: nothing else moves (D. G. Thaler, C. V. Ravishankar:
"Using name-based mappings to increase hit rates", IEEE/ACM Transactions on Networking 6, 1998).
A node of weight w scores w / -ln(u), u being uniform in (0, 1): it owns w's part of all.

    group_of(b"{tag}rest") == b"tag"         the part of a key that says where it lives
    group_id(b"tag")                         64 bits that stand for the group from here on
    Placement(nodes).first(ids, count=2)     for many groups at once
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from infinistore.cluster.nodes import Node

Ids = npt.NDArray[np.uint64]
Indexes = npt.NDArray[np.intp]

_MASK = 2**64 - 1
_A, _B = 0xA0761D6478BD642F, 0xE7037ED1A0B428DB
# With many nodes a batch is cut, so that its scores take some megabytes only.
_SCORES_MAX = 1 << 20


def group_of(key: bytes) -> bytes:
    """What stands between the first { and the next }, if anything; else the whole key.

    The rule of Redis Cluster's hash tags. Keys of one group live on one node.
    """
    start = key.find(b"{") + 1
    if start:
        end = key.find(b"}", start)
        if end > start:
            return key[start:end]
    return key


def group_id(group: bytes) -> int:
    """The 64 bits of a group: `hash_key` of core/base/hash.h, as bindings/pack.cpp uses it."""
    state = _A
    whole = len(group) // 8 * 8
    for at in range(0, whole, 8):
        word = int.from_bytes(group[at : at + 8], "little")
        state = _fold(state ^ word, _B ^ state)
    tail = int.from_bytes(group[whole:], "little")
    return _fold(state ^ tail, _B ^ len(group))


def _fold(x: int, y: int) -> int:
    product = x * y
    return (product ^ product >> 64) & _MASK


class Placement:
    """The order of some nodes for any group; built once a view."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
        seeds = [group_id(node.name.encode()) for node in self.nodes]
        self._seeds = np.array(seeds, dtype=np.uint64)
        known = [node.capacity_bytes for node in self.nodes if node.capacity_bytes]
        mean = sum(known) / len(known) if known else 1.0
        weights = np.array([node.capacity_bytes or mean for node in self.nodes], dtype=np.float64)
        # Equal ones need no logarithm, and so depend on no library's last bit.
        self._weights = None if len(set(weights.tolist())) <= 1 else weights

    def first(self, ids: Ids, count: int = 1) -> Indexes:
        """For each group the indexes in `nodes` of its first `count` nodes: (groups, count)."""
        count = min(count, len(self.nodes))
        if count <= 1 and len(self.nodes) <= 1:
            return np.zeros((len(ids), count), dtype=np.intp)
        step = max(1, _SCORES_MAX // len(self.nodes))
        if len(ids) <= step:
            return self._first(ids, count)
        groups, back = np.unique(ids, return_inverse=True)  # a chain's keys are of few groups
        parts = [self._first(groups[at : at + step], count) for at in range(0, len(groups), step)]
        ranks: Indexes = np.concatenate(parts)[back.reshape(-1)]
        return ranks

    def order(self, group: int) -> list[Node]:
        """All nodes for the group with that id, the owner first."""
        ranks = self.first(np.array([group], dtype=np.uint64), len(self.nodes))
        return [self.nodes[index] for index in ranks[0]]

    def _first(self, ids: Ids, count: int) -> Indexes:
        scores = self._scores(ids)
        if count == 1:
            best: Indexes = scores.argmax(axis=0)
            return best[:, None]
        last_first: Indexes = scores.argsort(axis=0, kind="stable")
        return np.ascontiguousarray(last_first[::-1][:count].T)

    def _scores(self, ids: Ids) -> npt.NDArray[Any]:
        # A row for each node: what numpy does at once is then long.
        mixed = _mix(ids[None, :] ^ self._seeds[:, None])
        if self._weights is None:
            return mixed
        uniform = ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        scores: npt.NDArray[np.float64] = self._weights[:, None] / -np.log(uniform)
        return scores


def order(group: int, nodes: Sequence[Node]) -> list[Node]:
    """All nodes for the group with that id, the owner first."""
    return Placement(nodes).order(group)


def _mix(bits: Ids) -> Ids:
    """The finaliser of SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, 2014): every bit counts."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = bits ^ (bits >> np.uint64(31))
    return bits
