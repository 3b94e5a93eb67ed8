"""What checks are given: what to measure, where peers are, whom to tell of progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from infinistore.bench.checks.line import Line
from infinistore.bench.run import Options

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Scope:
    """`options` narrow transports and block sizes, and give rounds, seed and working set."""

    options: Options
    logs: Path
    peers: Path = Path("build/peers")
    bench_store: Path = Path("build/dev/benchmarks/bench_store")
    quick: bool = False
    on_step: Callable[[str], None] = lambda step: None

    @property
    def rounds(self) -> int:
        """At least five, or the spread says nothing; fewer only on a caller's word."""
        return self.options.rounds

    def sizes(self, *wanted: int) -> tuple[int, ...]:
        """Those of `wanted` that the options allow."""
        return tuple(size for size in wanted if size in self.options.block_sizes)


@dataclass(frozen=True, slots=True)
class Check:
    """Some targets that are measured together."""

    name: str
    about: str
    find: Callable[[Scope], list[Line]]
