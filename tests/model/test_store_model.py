"""The store against a dict with leases, by steps that hypothesis chooses (and shrinks)."""

from __future__ import annotations

import pytest

pytest.importorskip("infinistore._native", reason="the extension is not built: make build")

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from infinistore._native import TestStore as NativeStore
from infinistore._native import checksum
from infinistore.errors import Code

PAGE = 4096
POOL_PAGES = 24

keys = st.sampled_from([b"a", b"b", b"\x00", b"a\x00", b"\xff" * 255, "caf\u00e9".encode()])
spaces = st.sampled_from([0, 1])
sizes = st.one_of(st.integers(1, 40), st.integers(1, 3 * PAGE), st.just(8 * PAGE))


class Value:
    """What was sealed once under a name."""

    def __init__(self, name: tuple[int, bytes], text: bytes) -> None:
        self.name, self.text = name, text


class Draft:
    """A value being written: what of it is filled, and with what."""

    def __init__(self, number: int, name: tuple[int, bytes], size: int, replaces: bool) -> None:
        self.number, self.name, self.replaces = number, name, replaces
        self.bytes = bytearray(size)
        self.filled: set[tuple[int, int]] = set()
        self.fenced = False
        self.ended = False

    def overlaps(self, start: int, end: int) -> bool:
        return any(start < e and s < end for s, e in self.filled)


class StoreMachine(RuleBasedStateMachine):
    drafts = Bundle("drafts")
    leases = Bundle("leases")
    quarantines = Bundle("quarantines")

    def __init__(self) -> None:
        super().__init__()
        self.store = NativeStore(POOL_PAGES * PAGE, staged_bytes_max=1 << 40)
        self.sealed: dict[tuple[int, bytes], Value] = {}  # eviction may have taken any of them
        self.open: list[Draft] = []
        self.leased: dict[int, Value] = {}
        self.quarantined: dict[int, int] = {}

    def pages(self, size: int) -> int:
        return -(-size // PAGE)

    @rule(target=drafts, space=spaces, key=keys, size=sizes, replaces=st.booleans())
    def reserve(self, space: int, key: bytes, size: int, replaces: bool):
        was_there = self.store.exists(space, key)
        code, number = self.store.reserve(space, key, size, replaces)
        if was_there and not replaces:
            same = len(self.sealed[space, key].text) == size
            assert code == (Code.EXISTS if same else Code.SIZE_MISMATCH)
        elif code != Code.OK:
            assert code == Code.OUT_OF_MEMORY
            # Refused only if evicting all that may go would not have been enough.
            pinned = sum(self.pages(len(v.text)) for v in self.leased.values())
            held = sum(self.pages(len(d.bytes)) for d in self.open)
            held += sum(self.pages(n) for n in self.quarantined.values())
            # What a scrub is in the middle of leaves a moment later.
            held += self.pages(self.store.scrub_held_bytes())
            assert POOL_PAGES - pinned - held < self.pages(size)
        if code != Code.OK:
            return multiple()
        draft = Draft(number, (space, key), size, replaces)
        self.open.append(draft)
        assert self.store.is_written(space, key)
        return draft

    @rule(draft=drafts, data=st.data(), byte=st.binary(min_size=1, max_size=1))
    def fill(self, draft: Draft, data: st.DataObject, byte: bytes) -> None:
        if draft.ended:
            return
        size = len(draft.bytes)
        start = data.draw(st.integers(0, size - 1), label="start")
        end = data.draw(st.one_of(st.just(size), st.integers(start + 1, size)), label="end")
        code = self.store.claim(draft.number, start, end - start)
        if (start, end) in draft.filled:
            assert code == Code.EXISTS
        elif draft.overlaps(start, end):
            assert code == Code.INVALID
        else:
            assert code == Code.OK
            if data.draw(st.integers(0, 5), label="failed") == 0:
                self.store.unclaim(draft.number, start, end - start)
                return
            text = byte * (end - start)
            self.store.filled(draft.number, start, text)
            draft.bytes[start:end] = text
            draft.filled.add((start, end))

    @rule(draft=drafts)
    def finish(self, draft: Draft) -> None:
        """Fills what is left and seals."""
        if draft.ended:
            return
        at = 0
        for start, end in [*sorted(draft.filled), (len(draft.bytes), len(draft.bytes))]:
            if at < start:
                assert self.store.claim(draft.number, at, start - at) == Code.OK
                self.store.filled(draft.number, at, bytes(start - at))
            at = end
        assert self.store.is_complete(draft.number)
        assert self.store.filled_ranges(draft.number) == [(0, len(draft.bytes))]
        was_there = self.store.exists(*draft.name)
        code = self.store.seal(draft.number)
        self.end(draft)
        if draft.fenced:
            assert code == Code.ABORTED
        elif was_there and not draft.replaces:
            same = len(self.sealed[draft.name].text) == len(draft.bytes)
            assert code == (Code.EXISTS if same else Code.SIZE_MISMATCH)
        else:
            assert code == Code.OK
            self.sealed[draft.name] = Value(draft.name, bytes(draft.bytes))
            assert self.store.exists(*draft.name)

    def end(self, draft: Draft) -> None:
        draft.ended = True
        self.open.remove(draft)

    @rule(draft=consumes(drafts))
    def abort(self, draft: Draft) -> None:
        if draft.ended:
            return
        self.store.abort(draft.number)
        self.end(draft)

    @rule(target=quarantines, draft=consumes(drafts))
    def quarantine(self, draft: Draft):
        if draft.ended:
            return multiple()
        number = self.store.quarantine(draft.number)
        self.end(draft)
        self.quarantined[number] = len(draft.bytes)
        return number

    @rule(number=consumes(quarantines))
    def end_quarantine(self, number: int) -> None:
        self.store.end_quarantine(number)
        del self.quarantined[number]

    @rule(target=leases, space=spaces, key=keys)
    def find(self, space: int, key: bytes):
        number = self.store.find(space, key)
        if number == 0:
            return multiple()
        self.leased[number] = self.sealed[space, key]
        return number

    @rule(
        target=leases,
        space=spaces,
        names=st.lists(keys, min_size=1, max_size=6),
        group=st.integers(1, 3),
    )
    def match(self, space: int, names: list[bytes], group: int):
        there = 0
        while there < len(names) and self.store.exists(space, names[there]):
            there += 1
        blocks, numbers = self.store.match_prefix(space, names, group)
        assert blocks == there // group
        assert len(numbers) == blocks * group
        for number, name in zip(numbers, names, strict=False):
            self.leased[number] = self.sealed[space, name]
        return multiple(*numbers)

    @rule(number=leases, data=st.data())
    def read(self, number: int, data: st.DataObject) -> None:
        if number not in self.leased:
            return
        text = self.leased[number].text
        start = data.draw(st.integers(0, len(text) - 1), label="start")
        end = data.draw(st.integers(start + 1, len(text)), label="end")
        assert self.store.read(number, start, end - start) == text[start:end]
        code, total = self.store.range_checksum(number, start, end - start)
        assert code == Code.OK
        assert total == checksum(text[start:end], start)

    @rule(number=consumes(leases))
    def release(self, number: int) -> None:
        if number in self.leased:
            self.store.release(number)
            del self.leased[number]

    @rule(number=leases)
    def drop_corrupt(self, number: int) -> None:
        """Takes the key away from this very value, never from what has taken its place."""
        if number not in self.leased:
            return
        value = self.leased[number]
        was_there = self.store.exists(*value.name)
        self.store.drop_corrupt(number)
        if self.sealed.get(value.name) is value:
            assert not self.store.exists(*value.name)
            del self.sealed[value.name]
        else:
            assert self.store.exists(*value.name) == was_there

    @rule(target=quarantines, is_fenced=st.booleans())
    def disconnect(self, is_fenced: bool):
        """All that a client has begun or holds ends at once."""
        numbers = []
        for draft in list(self.open):
            if is_fenced:
                self.store.abort(draft.number)
            else:
                numbers.append(self.store.quarantine(draft.number))
                self.quarantined[numbers[-1]] = len(draft.bytes)
            self.end(draft)
        for number in self.leased:
            self.store.release(number)
        self.leased.clear()
        return multiple(*numbers)

    @rule(size=st.sampled_from([1, 100, PAGE, 4 * PAGE, 1 << 30]))
    def scrub(self, size: int) -> None:
        """Some of a walk over all values, which are as they were put."""
        if not self.store.scrub(size):
            _, corrupt = self.store.end_scrub()
            assert corrupt == 0

    @rule()
    def give_up_scrub(self) -> None:
        self.store.end_scrub()

    @rule(space=spaces, key=keys)
    def erase(self, space: int, key: bytes) -> None:
        was_there = self.store.exists(space, key)
        assert self.store.erase(space, key) == was_there
        self.sealed.pop((space, key), None)

    @rule(space=spaces)
    def purge(self, space: int) -> None:
        count = self.store.key_count(space)
        assert self.store.purge(space) == count
        self.sealed = {n: v for n, v in self.sealed.items() if n[0] != space}
        for draft in self.open:
            draft.fenced |= draft.name[0] == space

    @rule(pages=st.integers(0, POOL_PAGES))
    def evict(self, pages: int) -> None:
        before = self.store.counters()["free_bytes"]
        freed = self.store.evict(pages * PAGE)
        assert self.store.counters()["free_bytes"] == before + freed

    @invariant()
    def leased_bytes_are_as_they_were(self) -> None:
        for number, value in self.leased.items():
            assert self.store.read(number, 0, len(value.text)) == value.text

    @invariant()
    def accounts_add_up(self) -> None:
        assert self.store.check_integrity() == ""
        now = self.store.counters()
        assert now["unaccounted_bytes"] == 0
        assert now["pins"] == len(self.leased)
        assert now["staged_values"] == len(self.open)
        assert now["reserved_bytes"] == PAGE * sum(self.pages(len(d.bytes)) for d in self.open)
        assert now["quarantined_bytes"] == PAGE * sum(map(self.pages, self.quarantined.values()))

    @invariant()
    def nothing_is_there_that_was_not_sealed(self) -> None:
        for name in ((s, k) for s in (0, 1) for k in (b"a", b"b", b"\x00", b"a\x00")):
            if self.store.exists(*name):
                assert name in self.sealed


StoreMachine.TestCase.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestStoreModel = StoreMachine.TestCase


def test_a_flipped_byte_is_seen_and_the_value_dropped() -> None:
    store = NativeStore(POOL_PAGES * PAGE)
    _, draft = store.reserve(0, b"key", 100)
    assert store.claim(draft, 0, 100) == Code.OK
    store.filled(draft, 0, b"x" * 100)
    assert store.seal(draft) == Code.OK
    lease = store.find(0, b"key")
    store.flip(lease, 50)
    assert store.range_checksum(lease, 40, 20) == (Code.CORRUPT, 0)
    store.drop_corrupt(lease)
    assert not store.exists(0, b"key")
    assert store.counters()["corrupt"] == 1
    store.release(lease)
    assert store.check_integrity() == ""


def test_a_scrub_finds_what_was_flipped_and_drops_it() -> None:
    store = NativeStore(POOL_PAGES * PAGE)
    for name in (b"a", b"b", b"c"):
        _, draft = store.reserve(0, name, 5000)
        assert store.claim(draft, 0, 5000) == Code.OK
        store.filled(draft, 0, name * 5000)
        assert store.seal(draft) == Code.OK
    lease = store.find(0, b"b")
    store.flip(lease, 4999)
    while store.scrub(1000):
        pass
    assert store.end_scrub() == (3, 1)
    assert [store.exists(0, name) for name in (b"a", b"b", b"c")] == [True, False, True]
    store.release(lease)
    assert store.check_integrity() == ""
