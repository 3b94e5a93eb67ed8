"""A log's lines as JSON: what was said, by whom, and what was raised."""

from __future__ import annotations

import json
import logging
import sys

from infinistore.server.log_lines import JsonLines


def line(message: str, *arguments: object, raised: bool = False) -> dict[str, str]:
    caught = sys.exc_info() if raised else None
    record = logging.LogRecord("a.b", logging.ERROR, __file__, 1, message, arguments, caught)
    record.created = 1.5
    text = JsonLines().format(record)
    assert "\n" not in text
    told = json.loads(text)
    assert isinstance(told, dict)
    return told


def test_a_line_says_when_how_bad_who_and_what() -> None:
    assert line("%s of\n%d", '"k"', 2) == {
        "time": "1970-01-01T00:00:01.500+00:00",
        "level": "ERROR",
        "logger": "a.b",
        "message": '"k" of\n2',
    }


def test_an_exception_is_in_its_line() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        told = line("failed", raised=True)
    assert told["message"] == "failed"
    assert told["exception"].endswith("ValueError: why")
