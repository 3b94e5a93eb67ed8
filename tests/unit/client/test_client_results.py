"""Outcomes, and what is raised for them."""

from __future__ import annotations

from typing import Any

import pytest

from infinistore.client.results import Batch, Lookup, Outcomes, first_error
from infinistore.errors import (
    Code,
    DisconnectedError,
    KeyNotFound,
    OutOfMemoryError,
    RequestTimeoutError,
)


class FakeBatch:
    """A native batch that has ended, or not."""

    def __init__(self, *codes: Code, failure: tuple[int, str] = (0, ""), done: bool = True) -> None:
        self.outcomes = bytes(codes)
        self.failure = failure
        self.done = done

    def wait(self, timeout_s: float | None) -> bool:
        return self.done

    def key(self, index: int) -> bytes:
        return b"key%d" % index


def batch(*codes: Code, **how: Any) -> Batch:
    return Batch(FakeBatch(*codes, **how), "read", None)  # type: ignore[arg-type]


def test_outcomes_are_a_list_of_codes() -> None:
    outcomes = Outcomes(bytes([0, 1, 2, 14, 11]))
    assert list(outcomes) == [
        Code.OK,
        Code.EXISTS,
        Code.MISSING,
        Code.CORRUPT,
        Code.DISCONNECTED,
    ]
    assert outcomes[2] is Code.MISSING
    assert outcomes[-1] is Code.DISCONNECTED
    assert outcomes[1:3] == [Code.EXISTS, Code.MISSING]
    assert len(outcomes) == 5
    assert not outcomes.all_ok
    assert outcomes.missing == [2, 3]
    assert outcomes.failed == [4]
    assert Outcomes(b"\0\1").all_ok
    assert Outcomes(b"").all_ok
    assert Outcomes(b"\0\1").failed == Outcomes(b"\0\1").missing == []
    assert "MISSING: 1" in repr(outcomes)


def test_a_miss_names_its_keys() -> None:
    error = batch(Code.OK, Code.MISSING, Code.CORRUPT).error()
    assert isinstance(error, KeyNotFound)
    assert error.keys == (b"key1", b"key2")
    assert "'key1', 'key2'" in str(error)
    assert error.outcomes == [Code.OK, Code.MISSING, Code.CORRUPT]


def test_long_lists_are_cut() -> None:
    text = str(batch(*[Code.MISSING] * 20).error())
    assert "20 keys not found" in text
    assert "'key7' and 12 more" in text


def test_refusals_of_keys_and_of_the_whole_have_their_class() -> None:
    error = batch(Code.OK, Code.OUT_OF_MEMORY, Code.MISSING).error()
    assert isinstance(error, OutOfMemoryError)
    assert "1 key of 3: out of memory ('key1')" in str(error)
    lost = batch(Code.DISCONNECTED, failure=(Code.DISCONNECTED, "the peer closed")).error()
    assert isinstance(lost, DisconnectedError)
    assert "the peer closed" in str(lost)
    assert batch(Code.OK, Code.EXISTS).error() is None


def test_misses_of_several_batches_are_one_error_and_weigh_least() -> None:
    misses = [batch(Code.MISSING), batch(Code.OK, Code.MISSING)]
    error = first_error(misses)
    assert isinstance(error, KeyNotFound)
    assert error.keys == (b"key0", b"key1")
    assert isinstance(first_error([*misses, batch(Code.OUT_OF_MEMORY)]), OutOfMemoryError)
    assert first_error([batch(Code.OK)]) is None
    assert first_error([]) is None


def test_waiting_in_vain_says_so() -> None:
    late = batch(Code.OK, done=False)
    with pytest.raises(RequestTimeoutError, match=r"not done after 0\.5 s"):
        late.wait(0.5)
    with pytest.raises(RequestTimeoutError, match="not done yet"):
        _ = late.outcomes
    assert "in flight" in repr(late)


def test_a_lookup_of_nothing_is_answered() -> None:
    nothing = Lookup(None, 1)
    assert nothing.done
    assert nothing.wait() == nothing.blocks == nothing.lease_id == 0
    assert nothing.error is None
