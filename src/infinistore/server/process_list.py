"""What the list of processes shows of this one: its arguments, without a secret among them."""

from __future__ import annotations

import contextlib
from pathlib import Path

# Of /proc/self/stat behind the program's name: where the arguments begin and end in memory.
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46


def hide_argument(secret: str, process: Path = Path("/proc/self")) -> None:
    """Puts stars in place of it, as `--flag SECRET` and `--flag=SECRET`, where the system lets us.

    Whoever looked before has seen it: this is no reason to give a secret so.
    """
    word = secret.encode("utf-8", "surrogateescape")
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
        with (process / "mem").open("r+b", buffering=0) as memory:
            memory.seek(begin)
            arguments = memory.read(end - begin)
            for at in places_of(word, arguments):
                memory.seek(begin + at)
                memory.write(b"*" * len(word))


def places_of(word: bytes, arguments: bytes) -> list[int]:
    """Where it is all of an argument, or all that follows an argument's first "="."""
    places, at = [], 0
    for argument in arguments.split(b"\0"):
        value = argument.partition(b"=")[2]
        if word and argument == word:
            places.append(at)
        elif word and value == word:
            places.append(at + len(argument) - len(value))
        at += len(argument) + 1
    return places
