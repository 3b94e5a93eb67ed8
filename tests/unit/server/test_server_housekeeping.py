"""Watermarks and notices, decided from snapshots; and the loop that acts on them."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_native import FakeNative
from infinistore.server.housekeeping import Watermarks, bytes_to_evict, keep_house, notices

MARKS = Watermarks(start=0.9, stop=0.7)


def level(used: int, sealed: int | None = None) -> dict[str, int]:
    sealed = used if sealed is None else sealed
    return {"capacity_bytes": 1000, "free_bytes": 1000 - used, "sealed_bytes": sealed}


@pytest.mark.parametrize(
    ("snapshot", "wanted"),
    [
        (level(899), 0),
        (level(900), 200),
        (level(1000), 300),
        (level(1000, sealed=50), 50),
        (level(1000, sealed=0), 0),
        ({}, 0),
    ],
)
def test_eviction_starts_at_one_mark_and_aims_at_the_other(
    snapshot: dict[str, int], wanted: int
) -> None:
    assert bytes_to_evict(snapshot, MARKS) == wanted


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_eviction_never_asks_for_more_than_is_sealed_or_goes_below_stop(
    used: int, sealed: int
) -> None:
    wanted = bytes_to_evict(level(used, min(sealed, used)), MARKS)
    assert 0 <= wanted <= min(sealed, used)
    assert wanted == 0 or used - wanted >= 700


def test_notices_tell_of_populating_shrinking_and_corruption() -> None:
    before = {"capacity_bytes": 2048, "populated_bytes": 0, "corrupt": 1}
    assert notices(before, before) == []
    done = {"capacity_bytes": 1024, "populated_bytes": 1024, "corrupt": 3}
    assert notices(before, done) == [
        (logging.WARNING, "the pool shrank to 1KiB: no memory could be had for the rest"),
        (logging.INFO, "all 1KiB of the pool are populated"),
        (logging.WARNING, "2 corrupt values were found and dropped"),
    ]


async def test_the_loop_evicts_once_and_then_rests() -> None:
    native = FakeNative()
    native.counters |= {"free_bytes": 0, "sealed_bytes": 1000}
    task = asyncio.create_task(keep_house(native, MARKS, 0.005))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert native.calls == [("evict", 300)]


async def test_a_failed_round_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    went_on = asyncio.Event()

    class Flaky(FakeNative):
        rounds = 0

        def snapshot(self) -> dict[str, int]:
            self.rounds += 1
            if self.rounds == 2:
                raise RuntimeError("no snapshot today")
            if self.rounds == 4:
                went_on.set()
            return super().snapshot()

    native = Flaky()
    task = asyncio.create_task(keep_house(native, MARKS, 0.005))
    await asyncio.wait_for(went_on.wait(), 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "no snapshot today" in caplog.text
