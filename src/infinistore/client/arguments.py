"""What callers give, checked: texts, ranges, times, keys; each refusal names the value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from infinistore import _native
from infinistore.errors import UsageError, error_for

Key = bytes | str
Pairs = Sequence[tuple[Key, int]]  # keys and where their blocks begin

# A request may move so much: docs/protocol.md section 1, less the checksums.
VALUE_BYTES_MAX = 2**30 - 2**16
WAIT_S_MAX = 86_400.0
U64_MAX = 2**64 - 1

T = TypeVar("T")


def check_text(text: str, what: str, bytes_max: int) -> None:
    """Raises `UsageError` if it does not fit so many bytes of UTF-8."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{what} holds a lone surrogate; give text that UTF-8 can hold") from None
    if size > bytes_max:
        raise UsageError(f"{what} has {size} bytes; at most {bytes_max} fit")


def check_range(range_bytes: int, value_bytes: int | None, value_offset: int) -> None:
    """Raises `UsageError` unless the range lies inside of its value."""
    for name, value in (("value_bytes", value_bytes), ("value_offset", value_offset)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= U64_MAX:
            raise UsageError(f"{name} is {value!r}; give a number of bytes")
    if range_bytes > VALUE_BYTES_MAX:
        raise UsageError(
            f"a block has {range_bytes} bytes; one call moves at most {VALUE_BYTES_MAX} of a "
            "value: move it in parts, with value_bytes and value_offset"
        )
    if value_bytes is not None and value_offset + range_bytes > value_bytes:
        raise UsageError(
            f"bytes {value_offset} to {value_offset + range_bytes} are not inside of a value of "
            f"value_bytes = {value_bytes}"
        )


def milliseconds_of(seconds: float, what: str) -> int:
    """Seconds of 0 to a day, rounded. Raises `UsageError`."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise UsageError(f"{what} is {seconds!r}; give seconds")
    if not 0 <= seconds <= WAIT_S_MAX:
        raise UsageError(f"{what} is {seconds} s; give 0 to {WAIT_S_MAX:.0f}")
    return round(seconds * 1000)


def keys_of(keys: Sequence[Key]) -> _native.Pack:
    """Keys, checked. Raises `UsageError`."""
    if isinstance(keys, (str, bytes)):
        raise UsageError(f"keys is one {type(keys).__name__}; give a list of keys")
    return parsed(_native.Pack.from_keys, listed(keys, "keys"))


def listed(values: Sequence[T], what: str) -> list[T]:
    """As a list, which it mostly is. Raises `UsageError`."""
    if isinstance(values, list):
        return values
    try:
        return list(values)
    except TypeError:
        raise UsageError(f"{what} is a {type(values).__name__}; give a list") from None


def parsed(parse: Callable[..., T], *arguments: Any) -> T:
    """What a native parser makes of them, its refusals as ours."""
    try:
        return parse(*arguments)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None


def answered(call: Callable[..., T], *arguments: Any) -> T:
    """What a native call gives, its failures as ours."""
    try:
        return call(*arguments)
    except _native.Failure as failure:
        code, message = failure.args
        raise error_for(code, message) from None
