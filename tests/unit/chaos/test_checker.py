"""The checker of the chaos harness: what must not be is noticed, and what may be is not."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from chaos.checker import Checker, OwnVersions, Read
from chaos.content import ABSENT, FAR, KEPT, OWN, TURN, Key, content, difference, parse
from chaos.destination import Destination
from infinistore.errors import Code

SIZES = (1, 8, 4096, 4100)
KEYS = [Key(KEPT, 4100, 1), Key(KEPT, 4100, 2)]


class Reading:
    """A read of two keys that a test may damage before it is judged."""

    def __init__(self, keys: Sequence[Key] = KEYS, *, is_far: bool = False, **how: bool) -> None:
        self.into = Destination(64 * 1024)
        size = keys[0].size
        self.read = Read(keys, self.into.place(len(keys), size, random.Random(1)), size, **how)
        self.checker = Checker(is_far=is_far)

    def bring(self, index: int, key: Key, version: int = 0) -> None:
        at = self.read.offsets[index]
        self.into.cache[at : at + key.size] = content(key, version)

    def kinds(self, *outcomes: Code, own: OwnVersions | None = None) -> list[str]:
        return [f.kind for f in self.checker.read(self.read, outcomes, self.into, own)]


@pytest.mark.parametrize("size", SIZES)
def test_every_changed_bit_of_a_value_is_seen(size: int) -> None:
    key = Key(KEPT, size, 3)
    for at in {0, size // 2, size - 1}:
        for bit in range(8):
            got = content(key).copy()
            got[at] ^= 1 << bit
            found = difference(key, got)
            assert found is not None
            assert (found.wrong_bytes, found.first) == (1, at)


def test_the_bytes_of_no_other_key_version_or_place_pass() -> None:
    key = Key(TURN, 4096, 1)
    assert difference(key, content(key, 7)) is None
    assert difference(key, content(Key(TURN, 4096, 2), 7)) is not None
    mixed = content(key, 7).copy()
    mixed[2048:] = content(key, 8)[2048:]
    assert difference(key, mixed) is not None
    kept = Key(KEPT, 4096, 1)
    assert difference(kept, content(kept)[100:200], 100) is None
    assert difference(kept, content(kept)[100:200], 101) is not None


def test_a_name_says_what_its_key_is() -> None:
    for key in (Key(OWN, 4100, 203, 17), Key(ABSENT, 1, 0)):
        assert parse(key.name) == key


def test_a_right_read_has_no_findings() -> None:
    reading = Reading()
    reading.bring(0, KEYS[0])
    assert reading.kinds(Code.OK, Code.MISSING) == []


def test_wrong_bytes_are_found() -> None:
    reading = Reading()
    reading.bring(0, KEYS[1])
    assert reading.kinds(Code.OK, Code.MISSING) == ["wrong"]


def test_bytes_of_a_missing_key_and_beside_the_blocks_may_not_change() -> None:
    reading = Reading()
    reading.bring(0, KEYS[0])
    reading.into.cache[reading.read.offsets[1] + 5] ^= 1
    assert reading.kinds(Code.OK, Code.MISSING) == ["touched"]
    assert reading.kinds(Code.OK, Code.DISCONNECTED) == []  # those of a failed one may
    reading.into.cache[reading.read.offsets[1] - 1] ^= 1
    assert reading.kinds(Code.OK, Code.DISCONNECTED) == ["touched"]


def test_a_write_after_the_end_is_seen() -> None:
    reading = Reading()
    reading.into.fill()
    assert reading.into.touched_anywhere() == 0
    reading.into.cache[reading.read.offsets[0] + 9] ^= 255
    assert reading.into.touched_anywhere() == 1


def test_damage_needs_a_cause() -> None:
    far = [Key(FAR, 4100, 1), Key(FAR, 4100, 2)]
    assert Reading().kinds(Code.CORRUPT, Code.MISSING) == ["corrupt"]
    assert Reading(far).kinds(Code.CORRUPT, Code.MISSING) == []
    assert Reading(is_far=True).kinds(Code.CORRUPT, Code.PROTOCOL) == []
    assert Reading().kinds(Code.PROTOCOL, Code.SIZE_MISMATCH) == ["unexpected"] * 2


def test_what_was_leased_is_there() -> None:
    assert Reading(is_leased=True).kinds(Code.MISSING, Code.LEASE_EXPIRED) == ["lease"]


def test_the_one_writer_of_a_key_knows_what_it_may_hold() -> None:
    key = Key(OWN, 4096, 1, 5)
    own = OwnVersions()
    for version, outcome in ((1, Code.OK), (2, Code.TIMEOUT), (3, Code.OK), (4, Code.OVERLOADED)):
        own.begin(key, version)
        own.end(key, version, outcome)

    def kinds_of(version: int) -> list[str]:
        reading = Reading([key])
        reading.bring(0, key, version)
        return reading.kinds(Code.OK, own=own)

    assert [kinds_of(version) for version in (1, 2, 3, 4)] == [["stale"], [], [], ["stale"]]


def test_a_key_that_nobody_wrote_is_not_there() -> None:
    keys = [Key(ABSENT, 8, 1), Key(KEPT, 8, 1)]
    assert Checker.presence(keys, [False, True]) == []
    assert [finding.kind for finding in Checker.presence(keys, [True, True])] == ["wrong"]
