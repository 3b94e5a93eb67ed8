"""The benchmark's arithmetic and its fairness, without a server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
from click.testing import CliRunner

from infinistore.bench.figures import (
    Case,
    Figure,
    Sample,
    best_limit,
    block_rate,
    cpu_cost,
    make_case,
    rate,
    ratio,
)
from infinistore.bench.memory import STALE_BYTE, Arena, Order, private_memory
from infinistore.bench.report import (
    HEADINGS,
    Row,
    as_json,
    as_markdown,
    cells,
    make_rows,
    show_count,
)
from infinistore.bench.rounds import CaseResult, InProcess, measure, process_cpu_s, timed
from infinistore.errors import CorruptError

MIB = 1024**2
CASE = Case(block_bytes=65536, block_count=1000, batch_blocks=1000)


def sample(seconds: float, near: float = 0.1, far: float | None = 0.2) -> Sample:
    return Sample(seconds, near, far)


class Mover:
    """A contender that copies by numpy; `spoil` may change what it keeps."""

    far_pids: tuple[int, ...] = ()

    def __init__(
        self,
        name: str,
        arena: Arena,
        log: list[str],
        spoil: Callable[[np.ndarray], None] = lambda kept: None,
    ) -> None:
        self.name, self._arena, self._log, self._spoil = name, arena, log, spoil

    def prepare(self, case: Case, order: Order) -> None:
        self._size = case.block_bytes
        self._order = order

    def _blocks(self, memory: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        return memory[(offsets[:, None] + np.arange(self._size, dtype=np.uint64)[None, :])]

    def write(self) -> tuple[float, ...]:
        self._log.append(self.name)
        self._kept = self._blocks(self._arena.source, self._order.source)
        self._spoil(self._kept)
        return (0.25,)

    def read(self) -> tuple[float, ...]:
        at = self._order.target[:, None] + np.arange(self._size, dtype=np.uint64)[None, :]
        self._arena.target[at] = self._kept
        return ()

    def clean(self) -> None:
        del self._kept

    def close(self) -> None: ...


def test_a_figure_is_the_median_between_the_extremes() -> None:
    assert Figure.of([3.0, 1.0, 2.0, 10.0]) == Figure(2.5, 1.0, 10.0)


def test_rates_and_cpu_are_by_bytes_and_blocks_of_one_pass() -> None:
    samples = [sample(0.1), sample(0.2), sample(0.4)]
    assert rate(CASE, samples).median == pytest.approx(65.536e6 / 0.2 / 1e9)
    assert block_rate(CASE, samples).high == pytest.approx(1000 / 0.1)
    near, far = cpu_cost(CASE, samples)
    assert near == pytest.approx(0.1 / 0.065536)
    assert far == pytest.approx(0.2 / 0.065536)
    assert cpu_cost(CASE, [sample(1, far=None)])[1] is None


def test_a_case_fills_the_working_set_in_bounded_batches() -> None:
    assert make_case(4096, 256 * MIB, 1024, 64 * MIB) == Case(4096, 65536, 1024)
    assert make_case(MIB, 256 * MIB, 1024, 64 * MIB) == Case(MIB, 256, 64)
    assert make_case(3 * MIB, 4 * MIB, 1024, 64 * MIB) == Case(3 * MIB, 1, 1)
    assert make_case(100, 1000, 1024, 10) == Case(100, 10, 1)


def test_a_ratio_is_taken_round_by_round() -> None:
    # The machine slows down three times over; the ratio does not notice.
    ours = [sample(2.0), sample(4.0), sample(6.0)]
    limit = [sample(1.0), sample(2.0), sample(3.0)]
    assert ratio(ours, limit) == Figure(0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="3 rounds"):
        ratio(ours, limit[:2])


def test_the_best_limit_is_the_quickest_by_its_median() -> None:
    limits = {"a": [sample(1.0), sample(9.0), sample(9.0)], "b": [sample(5.0)] * 3}
    assert best_limit(limits) == "b"


def result_of(ours_s: float, limit_s: float, block_bytes: int = 65536) -> CaseResult:
    case = Case(block_bytes, 1000, 1000)
    found = CaseResult(case)
    for verb in ("write", "read"):
        found.samples["shm", verb] = [sample(ours_s)] * 5
        found.samples["memcpy", verb] = [sample(limit_s)] * 5
        found.samples["slow", verb] = [sample(limit_s * 2)] * 5
    return found


def rows_of(*results: CaseResult) -> list[Row]:
    return make_rows(results, ["shm"], {"shm": ("slow", "memcpy")})


def test_a_row_is_short_only_below_a_target_that_it_has() -> None:
    ok, short = rows_of(result_of(1.0, 0.91))[0], rows_of(result_of(1.0, 0.89))[0]
    between = rows_of(result_of(1.0, 0.1, block_bytes=16384))[0]
    small = rows_of(result_of(1.0, 0.61, block_bytes=4096))[0]
    assert (ok.verdict, short.verdict, between.verdict) == ("ok", "short", "")
    assert (small.target, small.verdict) == (0.6, "ok")
    assert not between.is_short
    assert ok.limit == "memcpy"


def test_reports_hold_every_row() -> None:
    rows = rows_of(result_of(1.0, 0.9), result_of(1.0, 0.9, MIB))
    document = as_json(rows, {"CPU": "x"}, {"rounds": "5"})
    assert [row["block_bytes"] for row in document["rows"]] == [65536, MIB, 65536, MIB]
    assert document["rows"][0]["ratio"]["median"] == pytest.approx(0.9)
    assert document["rows"][0]["verdict"] == "ok"
    table = as_markdown(rows, {"CPU": "x"}, {"rounds": "5"})
    assert table.count("\n|") == 2 + len(rows)
    assert all(len(cells(row)) == len(HEADINGS) for row in rows)


@pytest.mark.parametrize(
    ("value", "text"), [(812.0, "812"), (41_320.0, "41.3k"), (1.251e6, "1.25M"), (2e5, "200k")]
)
def test_counts_have_three_digits(value: float, text: str) -> None:
    assert show_count(value) == text


def test_every_contender_runs_in_every_round_and_each_begins_in_turn() -> None:
    arena, log = Arena(8 * 4096, seed=1), list[str]()
    movers = [InProcess(Mover(name, arena, log), arena) for name in ("a", "b")]
    rounds_seen: list[None] = []
    found = measure(Case(4096, 8, 8), movers, 3, 1, on_round=lambda: rounds_seen.append(None))
    assert log == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert len(rounds_seen) == 4
    assert {key: len(samples) for key, samples in found.samples.items()} == {
        (name, verb): 3 for name in ("a", "b") for verb in ("write", "read")
    }
    assert found.blocks_verified == 4 * 2 * 8
    assert all(one.batches_s == (0.25,) for one in found.samples["a", "write"])
    assert all(one.batches_s == () for one in found.samples["a", "read"])


def test_one_wrong_byte_fails_the_run() -> None:
    arena = Arena(8 * 4096, seed=1)

    def flip(kept: np.ndarray) -> None:
        kept[3, 77] ^= 1

    with pytest.raises(CorruptError, match="1 of 8 blocks"):
        measure(Case(4096, 8, 8), [InProcess(Mover("a", arena, [], flip), arena)], 1, 0)


def test_bytes_that_never_arrived_are_wrong() -> None:
    arena = Arena(8 * 4096, seed=1)
    order = arena.shuffle(4096, 8, seed=1)
    arena.target[:] = arena.source  # from a pass before
    arena.forget()
    assert arena.wrong_blocks(order, 4096) == 8
    assert (private_memory(4096) == STALE_BYTE).all()


def test_cpu_of_another_process_is_counted() -> None:
    busy = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n"
    with subprocess.Popen(
        [sys.executable, "-c", busy + "print(1, flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process_cpu_s(process.pid) >= 0.2
        taken = timed(lambda: time.sleep(0.05) or (), (process.pid,))
        assert taken.cpu_far_s is not None
        assert taken.cpu_far_s < 0.02
        assert taken.seconds >= 0.05
        process.communicate(b"\n")
    assert process_cpu_s(os.getpid()) > 0


def test_a_block_beyond_the_working_set_is_refused_by_name() -> None:
    from infinistore.cli.bench import command

    refused = CliRunner().invoke(command, ["--block", "2MiB", "--working-set", "1MiB"])
    assert refused.exit_code == 2
    assert "2097152 bytes is not within the working set" in refused.output
    refused = CliRunner().invoke(command, ["--working-set", "lots"])
    assert refused.exit_code == 2
    assert "'lots' is not a size" in refused.output
