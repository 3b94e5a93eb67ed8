"""Sizes and durations as people write them ("64KiB", "500ms"), to and from numbers."""

from __future__ import annotations

import math
import re

from infinistore.errors import ConfigError

# A bare letter is binary, as in `docker -m 4G` and `free -h`; only an explicit B makes it decimal.
_BYTES = {
    "": 1,
    "b": 1,
    **{
        name: 1024**power
        for power, letter in enumerate("kmgtp", start=1)
        for name in (letter, letter + "ib")
    },
    **{letter + "b": 1000**power for power, letter in enumerate("kmgtp", start=1)},
}
_SECONDS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*")


def _split(text: str, units: dict[str, int] | dict[str, float], example: str) -> tuple[str, float]:
    match = _NUMBER.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise ConfigError(f"{text!r} is not {example}")
    return match[1], units[match[2].lower()]


def parse_bytes(text: str) -> int:
    """The number of bytes that `text` names. Raises `ConfigError` if it names none."""
    number, factor = _split(text, _BYTES, "a size; write it like 4096, 64KiB, 1.5GiB or 20GB")
    if "." not in number:  # exact beyond the 53 bits of a float
        return int(number) * int(factor)
    size = float(number) * factor
    if not size.is_integer():
        raise ConfigError(f"{text!r} is {size} bytes; give a whole number of bytes")
    return int(size)


def format_bytes(size: int) -> str:
    """The shortest exact form if there is one ("64KiB"), else three significant digits."""
    power = 0
    while power + 1 < len(_BINARY) and abs(size) >= 1024 ** (power + 1):
        power += 1
    scaled = size / 1024**power
    if size % 1024**power == 0:
        return f"{size // 1024**power}{_BINARY[power]}"
    digits = 2 if abs(scaled) < 10 else 1 if abs(scaled) < 100 else 0
    return f"{scaled:.{digits}f}{_BINARY[power]}"


def parse_seconds(text: str) -> float:
    """The seconds that `text` names. Raises `ConfigError` if it names none."""
    number, factor = _split(text, _SECONDS, "a duration; write it like 0.5, 500ms, 5s, 2min or 1h")
    return float(number) * factor


def format_seconds(seconds: float) -> str:
    """A duration as a person reads it: "1.5ms", "500ms", "30s", "2min", "1.5h"."""
    if seconds == 0 or not math.isfinite(seconds):
        return f"{seconds:g}s"
    for unit, factor in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.3g}{unit}"
    return f"{seconds / 1e-6:.3g}us"
