"""A trace: the blocks of prompts, in the order of their arrival."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

from infinistore.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Trace:
    """Prompts as lists of block numbers in prefix order."""

    name: str
    prompts: list[list[int]]

    @property
    def block_count(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def distinct_count(self) -> int:
        return len({block for prompt in self.prompts for block in prompt})

    def capacity(self, fraction: float) -> int:
        """So many blocks of those that are distinct, at least one."""
        return max(1, int(self.distinct_count * fraction))


def read_trace(path: Path) -> Trace:
    """Reads JSON lines with `hash_ids` (Mooncake's format), gzipped if the name ends in .gz.

    Raises ConfigError if the file is not one.
    """
    open_ = gzip.open if path.suffix == ".gz" else open
    try:
        with open_(path, "rt", encoding="utf-8") as lines:
            prompts = [[int(block) for block in json.loads(line)["hash_ids"]] for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a trace: {error!r}") from error
    if not any(prompts):
        raise ConfigError(f"{path}: no block in it")
    return Trace(path.name.partition(".")[0], prompts)
