"""One caller of a client: chooses random operations, makes them, and has their outcomes judged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from chaos.board import Slot
from chaos.calls import Calls, code_of
from chaos.checker import Checker, Finding, OwnVersions, Read
from chaos.content import (
    ABSENT,
    BULK,
    FAR,
    FAR_TURN,
    KEPT,
    LOOSE,
    OWN,
    SHARED,
    TURN,
    Key,
    content,
)
from chaos.destination import Destination
from chaos.reports import Reporter
from infinistore.errors import Code, InfiniStoreError

T = TypeVar("T")

KIB, MIB = 1024, 1024**2
SIZES = (4 * KIB, 4 * KIB, 4100, 64 * KIB, 64 * KIB, 65_537, 256 * KIB, MIB)
NUMBERS = 24  # keys of one family and size: all together more than the pool holds
BULK_BYTES = 8 * MIB
BULK_NUMBERS = 3
LEASE_S = 0.6
_LINK = (Code.DISCONNECTED, Code.TIMEOUT, Code.DRAINING, Code.PROTOCOL)
_REST_S = 0.02


@dataclass(slots=True)
class Staged:
    """A value that is being written in ranges, and those that are left."""

    key: Key
    ranges: list[tuple[int, int]]


@dataclass(slots=True)
class Role:
    """What a caller may write and read."""

    serial: int  # of its process
    number: int  # of the caller in it
    is_far: bool
    cancels: bool
    in_cluster: bool
    written: tuple[str, ...] = field(init=False)
    replaced: tuple[str, ...] = field(init=False)
    read: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.written = (FAR,) if self.is_far else (KEPT, LOOSE)
        self.replaced = (FAR_TURN,) if self.is_far else (TURN,)
        # Who reads over a line that changes bytes erases what seems damaged: never those of KEPT.
        near = () if self.is_far else (KEPT, SHARED)
        self.read = (*near, LOOSE, TURN, FAR, FAR_TURN, BULK)


class Caller:
    """Goes on until told to stop; each step is one or a few calls that belong together."""

    def __init__(
        self, calls: Calls, role: Role, slot: Slot, reporter: Reporter, chance: random.Random
    ) -> None:
        self._calls = calls
        self._role = role
        self._slot = slot
        self._reporter = reporter
        self._chance = chance
        self._checker = Checker(is_far=role.is_far, loses_leased=role.in_cluster)
        self._own = OwnVersions()
        self._versions = (role.serial * 16 + role.number) << 32
        self._into = Destination(9 * MIB)
        self._staged: Staged | None = None
        self._is_fenced = False  # the last read failed: nothing may be written any more
        self._steps = (
            (self._read, 26),
            (self._write, 22),
            (self._replace, 8),
            (self._write_own, 5),
            (self._read_own, 5),
            (self._stage, 18),
            (self._exists, 5),
            (self._match, 4),
            (self._lease, 7),
            (self._delete, 4),
        )

    async def step(self) -> None:
        """One random step."""
        self._check_fence()
        steps, weights = zip(*self._steps, strict=True)
        await self._chance.choices(steps, weights)[0]()

    async def rest(self) -> None:
        """Gives up what it holds between calls."""
        self._check_fence()
        if self._staged is not None:
            await self._call("abort", self._calls.abort([self._staged.key.name]))
            self._staged = None

    # ---- steps ----

    async def _read(self) -> None:
        family = self._chance.choice(self._role.read)
        if family == BULK:
            if self._chance.random() < 0.8:
                return
            keys = [Key(BULK, BULK_BYTES, self._chance.randrange(BULK_NUMBERS))]
        else:
            keys = self._some(family, self._chance.randint(1, 6))
        wait_s = self._chance.choice((0.0, 0.0, 0.0, 0.15))
        offset, size = 0, keys[0].size
        if not keys[0].is_replaced and self._chance.random() < 0.2:
            offset = self._chance.randrange(size)
            size = self._chance.randint(1, size - offset)
        await self._read_keys(keys, offset, size, wait_s=wait_s)

    async def _write(self) -> None:
        family = self._chance.choice(self._role.written)
        keys = self._some(family, self._chance.randint(1, 4))
        for key in keys:  # values lie each in an array of its own
            outcomes = await self._write_one(key, 0, 0, key.size, "keep")
            if outcomes is None:
                return

    async def _replace(self) -> None:
        key = self._some(self._chance.choice(self._role.replaced), 1)[0]
        await self._write_one(key, self._next_version(), 0, key.size, "replace")

    def _own_key(self) -> Key:
        size = self._chance.choice(SIZES[:6])
        return Key(OWN, size, self._role.number * 100 + self._chance.randrange(3), self._serial)

    async def _write_own(self) -> None:
        if self._role.is_far:  # what comes late through the proxy may be damaged, or in any order
            return
        key, version = self._own_key(), self._next_version()
        self._own.begin(key, version)
        outcomes = await self._write_one(key, version, 0, key.size, "replace")
        self._own.end(key, version, outcomes[0] if outcomes else None)

    async def _read_own(self) -> None:
        if not self._role.is_far:
            await self._read_keys([key := self._own_key()], 0, key.size, own=self._own)

    async def _stage(self) -> None:
        """Begins a value, or writes some of what is left of the one begun."""
        if self._role.is_far:
            return
        staged = self._staged
        if staged is None:
            staged = self._staged = self._begin()
        elif self._chance.random() < 0.1:
            await self.rest()
            return
        for _ in range(self._chance.randint(1, 2)):
            if not staged.ranges:
                break
            offset, size = staged.ranges.pop()
            outcomes = await self._write_one(staged.key, 0, offset, size, "keep")
            if outcomes is None or outcomes[0] not in (Code.OK, Code.EXISTS):
                self._staged = None
                return
            if outcomes[0] == Code.EXISTS:  # another writer was first
                staged.ranges.clear()
        if not staged.ranges:
            self._staged = None
            await self._read_keys([staged.key], 0, staged.key.size)

    def _begin(self) -> Staged:
        size = self._chance.choice(SIZES[3:])
        if self._chance.random() < 0.3:
            key = Key(SHARED, size, self._chance.randrange(NUMBERS))
        else:
            number = self._role.number * 100 + self._chance.randrange(NUMBERS)
            key = Key(SHARED, size, number, self._serial)
        quarter = size // 4
        ranges = [(i * quarter, quarter if i < 3 else size - 3 * quarter) for i in range(4)]
        self._chance.shuffle(ranges)
        return Staged(key, ranges)

    async def _exists(self) -> None:
        keys = [*self._some(LOOSE, 3), *self._some(ABSENT, 3)]
        answers = await self._call("exists", self._calls.exists(_names(keys)))
        if answers is not None:
            for finding in self._checker.presence(keys, answers):
                self._reporter.find(finding)

    async def _match(self) -> None:
        keys = [*self._chain(self._chance.choice(self._role.written)), *self._some(ABSENT, 1)]
        found = await self._call("match", self._calls.match(_names(keys)))
        if found is not None and not 0 <= found < len(keys):
            self._find("wrong", f"match_prefix found {found} of {len(keys) - 1} keys", 1)

    async def _lease(self) -> None:
        """What a lookup leased can be read under it, whatever eviction does."""
        if self._role.is_far:
            return
        keys = self._chain(KEPT)
        found = await self._call("lookup", self._calls.lookup(_names(keys), LEASE_S))
        if found is None or found[0] == 0:
            return
        if self._chance.random() < 0.3:
            await asyncio.sleep(self._chance.uniform(0, 0.1))
        await self._read_keys(keys[: found[0]], 0, keys[0].size, lease_id=found[1])
        if self._chance.random() < 0.8:  # else it ends by itself
            await self._calls.release(found[1])

    async def _delete(self) -> None:
        family = FAR if self._role.is_far else self._chance.choice((LOOSE, TURN))
        keys = [*self._some(family, self._chance.randint(1, 3)), *self._some(ABSENT, 1)]
        found = await self._call("delete", self._calls.delete(_names(keys)))
        if found is not None and not 0 <= found < len(keys):
            self._find("wrong", f"delete found {found} of {len(keys) - 1} keys", 1)

    # ---- calls ----

    async def _write_one(
        self, key: Key, version: int, offset: int, size: int, on_exists: str
    ) -> list[Code] | None:
        value = content(key, version)
        write = self._calls.write(
            value,
            [(key.name, offset)],
            size,
            value_bytes=key.size,
            value_offset=offset,
            on_exists=on_exists,
        )
        outcomes = await self._call("write", write)
        if outcomes is not None:
            self._judge("write", outcomes, [key])
        return outcomes

    async def _read_keys(
        self,
        keys: list[Key],
        offset: int,
        size: int,
        *,
        wait_s: float = 0.0,
        lease_id: int = 0,
        own: OwnVersions | None = None,
    ) -> None:
        offsets = self._into.place(len(keys), size, self._chance)
        read = self._calls.read(
            self._into.cache,
            list(zip(_names(keys), offsets, strict=True)),
            size,
            value_bytes=keys[0].size,
            value_offset=offset,
            wait_s=wait_s,
            lease_id=lease_id,
        )
        if self._role.cancels and self._chance.random() < 0.2:
            read = self._cancelled(read)
        outcomes = await self._call("read", read, wait_s)
        if outcomes is None or any(code not in (Code.OK, Code.MISSING) for code in outcomes):
            self._is_fenced = True
        if outcomes is not None:
            asked = Read(keys, offsets, size, offset, is_leased=lease_id != 0)
            for code in outcomes:
                self._reporter.count("read", code.name.lower())
            for finding in self._checker.read(asked, outcomes, self._into, own):
                self._reporter.find(finding)
        if self._is_fenced:
            self._into.fill()

    async def _cancelled(self, read: Awaitable[list[Code]]) -> list[Code]:
        task = asyncio.ensure_future(read)
        await asyncio.sleep(self._chance.choice((0.0, 0.0002, 0.001, 0.004)))
        if not task.done():
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            self._reporter.count("cancel", "done")
            raise _Cancelled from None

    async def _call(self, verb: str, call: Awaitable[T], patience_s: float = 0.0) -> T | None:
        """None: it failed as a whole, which is judged and counted here."""
        self._slot.begin(verb, patience_s)
        is_good = False
        try:
            result = await call
            is_good = not isinstance(result, list) or result[0] not in _LINK
        except _Cancelled:
            return None
        except InfiniStoreError as error:
            self._judge(verb, [code_of(error)], None, str(error))
            await asyncio.sleep(_REST_S)  # or it would dial a dead server without end
            return None
        finally:
            self._slot.end(is_good=is_good)
        if verb not in ("read", "write"):
            self._reporter.count(verb, "ok")
        elif not is_good:
            await asyncio.sleep(_REST_S)
        return result

    def _judge(
        self, verb: str, codes: Sequence[Code], keys: list[Key] | None, text: str = ""
    ) -> None:
        for index, code in enumerate(codes):
            self._reporter.count(verb, code.name.lower())
            finding = self._checker.outcome(code, keys[index] if keys else None, verb)
            if finding is not None:
                self._find(finding.kind, f"{finding.what} {text}".strip())

    def _check_fence(self) -> None:
        """After a read that failed, its memory is the caller's again: nobody writes there."""
        if self._is_fenced and (count := self._into.touched_anywhere()):
            self._find("touched", "memory of a read that had ended", count)
        self._is_fenced = False

    def _find(self, kind: str, what: str, wrong_bytes: int = 0) -> None:
        self._reporter.find(Finding(kind, what, wrong_bytes))

    # ---- choices ----

    @property
    def _serial(self) -> int:
        return self._role.serial

    def _next_version(self) -> int:
        self._versions += 1
        return self._versions

    def _some(self, family: str, count: int) -> list[Key]:
        size = self._chance.choice(SIZES)
        numbers = self._chance.sample(range(NUMBERS), min(count, 3 if size > 256 * KIB else count))
        return [Key(family, size, number) for number in numbers]

    def _chain(self, family: str) -> list[Key]:
        size = self._chance.choice(SIZES[:7])
        first = self._chance.randrange(NUMBERS - 6)
        return [Key(family, size, first + i) for i in range(self._chance.randint(1, 6))]


class _Cancelled(Exception):
    """A call that was cancelled on purpose has ended."""


def _names(keys: Sequence[Key]) -> list[str]:
    return [key.name for key in keys]
