"""Published eviction policies, as plain as they can be: to compare with, not to serve.

Each knows its capacity in blocks, says what it holds, and is told of every use in order: a use of a
block that it does not hold puts it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol


class Policy(Protocol):
    def __contains__(self, block: int) -> bool: ...

    def use(self, block: int) -> None: ...


class Lru:
    """Least recently used first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._blocks

    def use(self, block: int) -> None:
        self._blocks[block] = None
        self._blocks.move_to_end(block)
        if len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)


class Sieve:
    """A queue and a hand that spares what was used since it came by (Zhang et al., NSDI 2024)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._visited: OrderedDict[int, bool] = OrderedDict()  # oldest first
        self._spared: deque[int] = deque()  # behind the hand, oldest first
        self._ahead: deque[int] = deque()  # the hand's next ones, then younger ones

    def __contains__(self, block: int) -> bool:
        return block in self._visited

    def use(self, block: int) -> None:
        if block in self._visited:
            self._visited[block] = True
            return
        while len(self._visited) >= self._capacity:
            self._step()
        self._visited[block] = False
        self._ahead.append(block)

    def _step(self) -> None:
        if not self._ahead:  # the hand starts anew from the oldest
            self._ahead, self._spared = self._spared, deque()
        block = self._ahead.popleft()
        if self._visited[block]:
            self._visited[block] = False
            self._spared.append(block)
        else:
            del self._visited[block]


class S3Fifo:
    """A small queue for newcomers, a main one, ghosts (Yang et al., SOSP 2023)."""

    def __init__(self, capacity: int) -> None:
        self._small_max = max(1, capacity // 10)
        self._capacity = capacity
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._uses: dict[int, int] = {}
        self._ghosts: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._uses

    def use(self, block: int) -> None:
        if block in self._uses:
            self._uses[block] = min(3, self._uses[block] + 1)
            return
        while len(self._uses) >= self._capacity:
            self._evict()
        self._uses[block] = 0
        if block in self._ghosts:
            del self._ghosts[block]
            self._main.append(block)
        else:
            self._small.append(block)

    def _evict(self) -> None:
        if len(self._small) >= self._small_max or not self._main:
            block = self._small.popleft()
            if self._uses[block] > 1:
                self._uses[block] = 0
                self._main.append(block)
                return
            self._ghosts[block] = None
            if len(self._ghosts) > self._capacity - self._small_max:
                self._ghosts.popitem(last=False)
            del self._uses[block]
            return
        block = self._main.popleft()
        if self._uses[block] > 0:
            self._uses[block] -= 1
            self._main.append(block)
        else:
            del self._uses[block]


class TwoQ:
    """Newcomers in a FIFO, what returns after it in an LRU (2Q; Johnson & Shasha, VLDB 1994)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._in_max = max(1, capacity // 4)
        self._out_max = max(1, capacity // 2)
        self._in: OrderedDict[int, None] = OrderedDict()
        self._out: OrderedDict[int, None] = OrderedDict()
        self._main: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._main or block in self._in

    def use(self, block: int) -> None:
        if block in self._main:
            self._main.move_to_end(block)
            return
        if block in self._in:
            return
        if len(self._in) + len(self._main) >= self._capacity:
            self._evict()
        if block in self._out:
            del self._out[block]
            self._main[block] = None
        else:
            self._in[block] = None

    def _evict(self) -> None:
        if len(self._in) >= self._in_max or not self._main:
            old, _ = self._in.popitem(last=False)
            self._out[old] = None
            if len(self._out) > self._out_max:
                self._out.popitem(last=False)
        else:
            self._main.popitem(last=False)


class Arc:
    """Two LRUs, of what was used once and more, whose sizes ghosts adapt (Megiddo, FAST 2003)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._once_target = 0.0
        self._once: OrderedDict[int, None] = OrderedDict()
        self._often: OrderedDict[int, None] = OrderedDict()
        self._once_ghosts: OrderedDict[int, None] = OrderedDict()
        self._often_ghosts: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._once or block in self._often

    def use(self, block: int) -> None:
        once, often = len(self._once_ghosts), len(self._often_ghosts)
        if block in self:
            self._once.pop(block, None)
        elif block in self._once_ghosts:
            self._once_target = min(self._capacity, self._once_target + max(1.0, often / once))
            self._make_room(is_often_ghost=False)
            del self._once_ghosts[block]
        elif block in self._often_ghosts:
            self._once_target = max(0.0, self._once_target - max(1.0, once / often))
            self._make_room(is_often_ghost=True)
            del self._often_ghosts[block]
        else:
            self._put_new(block)
            return
        self._often[block] = None
        self._often.move_to_end(block)

    def _put_new(self, block: int) -> None:
        once = len(self._once) + len(self._once_ghosts)
        ghosts = len(self._once_ghosts) + len(self._often_ghosts)
        if once >= self._capacity:
            if self._once_ghosts:
                self._once_ghosts.popitem(last=False)
                self._make_room(is_often_ghost=False)
            else:
                self._once.popitem(last=False)
        elif len(self._once) + len(self._often) >= self._capacity:
            if ghosts >= self._capacity:
                self._often_ghosts.popitem(last=False)
            self._make_room(is_often_ghost=False)
        self._once[block] = None

    def _make_room(self, *, is_often_ghost: bool) -> None:
        if len(self._once) + len(self._often) < self._capacity:
            return
        size = len(self._once)
        is_over = size > self._once_target or (is_often_ghost and size == self._once_target)
        if self._once and (is_over or not self._often):
            self._once_ghosts[self._once.popitem(last=False)[0]] = None
        else:
            self._often_ghosts[self._often.popitem(last=False)[0]] = None


class Lfu:
    """Least often used first, the age of the cache being added (LFU-DA; Arlitt et al., 1999)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._age = 0
        self._counts: dict[int, int] = {}
        self._priority: dict[int, int] = {}
        self._by_priority: dict[int, OrderedDict[int, None]] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._priority

    def use(self, block: int) -> None:
        if block in self._priority:
            self._drop(block)
            self._counts[block] += 1
        else:
            if len(self._priority) >= self._capacity:
                self._age = min(self._by_priority)
                victim = next(iter(self._by_priority[self._age]))
                self._drop(victim)
                del self._counts[victim]
            self._counts[block] = 1
        at = self._age + self._counts[block]
        self._priority[block] = at
        self._by_priority.setdefault(at, OrderedDict())[block] = None

    def _drop(self, block: int) -> None:
        at = self._priority.pop(block)
        del self._by_priority[at][block]
        if not self._by_priority[at]:
            del self._by_priority[at]


PUBLISHED: dict[str, Callable[[int], Policy]] = {
    "S3-FIFO": S3Fifo,
    "SIEVE": Sieve,
    "2Q": TwoQ,
    "ARC": Arc,
    "LFU-DA": Lfu,
}
