"""Sizes and durations, to and from text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinistore.errors import ConfigError
from infinistore.units import format_bytes, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("64KiB", 65536),
        ("64k", 65536),
        ("64KB", 64000),
        ("1.5 GiB", 3 * 2**29),
        (" 2T ", 2**41),
        ("9007199254740993", 9007199254740993),  # one past what a float holds
    ],
)
def test_parse_bytes_reads_what_people_write(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 GiX", "1e9", "1..5", "nan", "0x10", "1GiB 2"])
def test_parse_bytes_refuses_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="64KiB"):
        parse_bytes(text)


def test_parse_bytes_refuses_a_part_of_a_byte() -> None:
    with pytest.raises(ConfigError, match="whole number"):
        parse_bytes("1.3KiB")


@given(st.integers(min_value=0, max_value=2**60))
def test_format_bytes_stays_within_a_percent(size: int) -> None:
    text = format_bytes(size)
    number = float(text.rstrip("KMGTPiB"))
    factor = 1024 ** ("BKMGTP".index(text.lstrip("0123456789.")[0]))
    assert number * factor == pytest.approx(size, rel=0.01)


@given(st.integers(min_value=0, max_value=1023), st.integers(min_value=0, max_value=4))
def test_format_bytes_of_a_round_size_reads_back(number: int, power: int) -> None:
    size = number * 1024**power
    assert parse_bytes(format_bytes(size)) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0.5", 0.5),
        ("500ms", 0.5),
        ("5s", 5),
        ("2min", 120),
        ("1.5h", 5400),
        ("50us", 5e-5),
    ],
)
def test_parse_seconds_reads_what_people_write(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "-1s", "5 days", "s", "inf"])
def test_parse_seconds_refuses_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="500ms"):
        parse_seconds(text)


@pytest.mark.parametrize("seconds", [0, 5e-5, 0.0015, 0.5, 1, 30, 120, 5400])
def test_format_seconds_reads_back(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=0.01)
