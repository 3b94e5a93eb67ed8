"""Judges what calls brought: outcomes that may be, bytes that must be, bytes that must not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos.content import Array, Key, difference, version_of
from chaos.destination import Destination
from infinistore.errors import Code

# Chaos explains these on every path.
EXPECTED = frozenset(
    {
        Code.OK,
        Code.EXISTS,
        Code.MISSING,
        Code.OUT_OF_MEMORY,
        Code.OVERLOADED,
        Code.DISCONNECTED,
        Code.TIMEOUT,
        Code.CANCELLED,
        Code.ABORTED,
        Code.LEASE_EXPIRED,
        Code.DRAINING,
    }
)
# And these where the proxy changes bytes.
EXPECTED_FAR = EXPECTED | {Code.CORRUPT, Code.PROTOCOL, Code.VERSION}
# The bytes of such a key are untouched: the client promises it of no other failure.
_UNTOUCHED = (Code.MISSING, Code.LEASE_EXPIRED)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be."""

    kind: str  # wrong, touched, corrupt, unexpected, lease, stale
    what: str
    wrong_bytes: int = 0


@dataclass(slots=True)
class OwnVersions:
    """What a key with one writer may hold, by what that writer was told."""

    newest: dict[Key, int] = field(default_factory=dict)
    unknown: dict[Key, set[int]] = field(default_factory=dict)

    def begin(self, key: Key, version: int) -> None:
        """Before a write: until it is answered anything may be."""
        self.unknown.setdefault(key, set()).add(version)

    def end(self, key: Key, version: int, outcome: Code | None) -> None:
        """After it. What was refused is nowhere; of a lost one nobody knows, for ever."""
        if outcome == Code.OK:
            self.newest[key] = version
        if outcome in (Code.OK, Code.OUT_OF_MEMORY, Code.OVERLOADED):
            self.unknown[key].discard(version)

    def fault(self, key: Key, version: int) -> Finding | None:
        """What is wrong with reading this version."""
        if version == self.newest.get(key) or version in self.unknown.get(key, ()):
            return None
        newest = self.newest.get(key)
        return Finding("stale", f"{key.name} is version {version}, after {newest} was written", 1)


@dataclass(slots=True)
class Read:
    """One read: where its blocks lie, and what was asked of each."""

    keys: Sequence[Key]
    offsets: list[int]
    block_bytes: int
    value_offset: int = 0
    is_leased: bool = False


class Checker:
    """Of one client process; `is_far`: its bytes pass the proxy.

    `loses_leased`: what was leased may be missing, as its node was killed and another one asked.
    """

    def __init__(self, *, is_far: bool, loses_leased: bool = False) -> None:
        self._loses_leased = loses_leased
        self._expected = EXPECTED_FAR if is_far else EXPECTED
        self._is_far = is_far

    def outcome(self, code: Code, key: Key | None = None, verb: str = "") -> Finding | None:
        """Whether an outcome may be."""
        name = key.name if key else "a call"
        if code in self._expected:
            return None
        if code == Code.CORRUPT and key is not None:
            if key.is_damageable:
                return None
            return Finding("corrupt", f"{verb} of {name}: its bytes do not match their checksum")
        return Finding("unexpected", f"{verb} of {name}: {code.name}")

    def read(
        self,
        read: Read,
        outcomes: Sequence[Code],
        into: Destination,
        own: OwnVersions | None = None,
    ) -> list[Finding]:
        """Every byte of what came, and every byte that nobody may have touched."""
        found: list[Finding | None] = []
        for key, offset, code in zip(read.keys, read.offsets, outcomes, strict=True):
            found.append(self.outcome(code, key, "read"))
            got = into.cache[offset : offset + read.block_bytes]
            if code == Code.OK:
                found.append(_fault_of_value(key, got, read.value_offset, own))
            elif code in _UNTOUCHED and (count := into.touched(offset, offset + read.block_bytes)):
                found.append(Finding("touched", f"{key.name} is {code.name}, yet written", count))
            if code == Code.MISSING and read.is_leased and not self._loses_leased:
                found.append(Finding("lease", f"{key.name} was leased, and is missing"))
        if count := into.touched_beside(read.offsets, read.block_bytes):
            found.append(Finding("touched", "bytes beside the blocks of a read", count))
        return [finding for finding in found if finding is not None]

    @staticmethod
    def presence(keys: Sequence[Key], answers: Sequence[bool]) -> list[Finding]:
        """Whether keys are said to be there that nobody ever wrote."""
        return [
            Finding("wrong", f"{key.name} is said to be there, and was never written", 1)
            for key, is_there in zip(keys, answers, strict=True)
            if is_there and key.family == "absent"
        ]


def _fault_of_value(key: Key, got: Array, offset: int, own: OwnVersions | None) -> Finding | None:
    wrong = difference(key, got, offset)
    if wrong is not None:
        text = f"{key.name}: {wrong.wrong_bytes} wrong bytes from {wrong.first} on"
        return Finding("wrong", f"{text} (version {wrong.version})", wrong.wrong_bytes)
    return None if own is None else own.fault(key, version_of(got))
