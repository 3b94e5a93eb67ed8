"""Which of a process's arguments are a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from infinistore.server.process_list import hide_argument, places_of


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        (b"serve\0--token\0abc\0", [14]),
        (b"serve\0--token=abc\0--x\0", [14]),
        (b"--token\0abc\0--token=abc\0", [8, 20]),
        (b"abcd\0--pool=xabc\0--a=b=abc\0", []),
        (b"", []),
    ],
)
def test_a_secret_is_a_whole_argument_or_a_whole_value(arguments: bytes, places: list[int]) -> None:
    assert places_of(b"abc", arguments) == places
    assert places_of(b"", arguments) == []


def test_a_system_that_does_not_let_us_is_no_error(tmp_path: Path) -> None:
    hide_argument("abc", tmp_path)
    (tmp_path / "stat").write_text("1 (odd) name) S 2")
    hide_argument("abc", tmp_path)
