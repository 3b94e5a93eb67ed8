"""Contenders in processes of their own: joined samples, their errors, their rest."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infinistore.bench.child import Fleet, Recipe
from infinistore.bench.figures import Case
from infinistore.bench.process import ChildProcess
from infinistore.bench.rounds import measure
from infinistore.errors import CorruptError, SetupError

CASE = Case(block_bytes=4096, block_count=8, batch_blocks=2)

# Keeps what it writes; `fault` makes it forget a byte, or fail.
TOY = """
import time
class Toy:
    name, far_pids = "toy", ()
    def __init__(self, arena, *, fault=""):
        print("a package that prints")
        if fault == "start":
            raise RuntimeError("no such device")
        self.arena, self.fault = arena, fault
    def prepare(self, case, order):
        self.size, self.order, self.count = case.block_bytes, order, case.block_count
    def _each(self, move):
        for number, at in enumerate(zip(self.order.source.tolist(), self.order.target.tolist())):
            move(number, *at)
    def write(self):
        if self.fault == "write":
            raise RuntimeError("the far end is gone")
        self.kept = {}
        def keep(number, source, target):
            self.kept[number] = self.arena.source[source : source + self.size].copy()
        self._each(keep)
        if self.fault == "byte":
            self.kept[0][7] ^= 1
        time.sleep(0.01)
        return [0.5] * self.count
    def read(self):
        def place(number, source, target):
            self.arena.target[target : target + self.size] = self.kept[number]
        self._each(place)
        return []
    def clean(self): ...
    def close(self): ...
"""


@pytest.fixture
def toys(tmp_path: Path) -> Iterator[object]:
    (tmp_path / "toy.py").write_text(TOY)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    fleets: list[Fleet] = []

    def start(count: int, fault: str = "", rests: bool = False) -> Fleet:
        recipe = Recipe("toy:Toy", 8 * 4096, 1, {"fault": fault})
        fleet = Fleet(
            "toy",
            [recipe] * count,
            tmp_path / "log",
            environment={"PYTHONPATH": path},
            rests=rests,
        )
        fleets.append(fleet)
        return fleet

    yield start
    for fleet in fleets:
        fleet.close()


def test_children_share_a_case_and_their_samples_are_joined(toys) -> None:  # type: ignore[no-untyped-def]
    found = toys(2).run(CASE, 1, ("write", "read"))
    assert (found.blocks, found.wrong_blocks) == (8, 0)
    written = found.samples["write"]
    assert written.batches_s == (0.5,) * 8  # four of each child
    assert 0.01 <= written.seconds < 5
    assert written.cpu_near_s > 0
    assert found.samples["read"].batches_s == ()


def test_a_child_that_brings_back_a_wrong_byte_ends_the_run(toys) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(CorruptError, match="toy: 1 of 8 blocks"):
        measure(CASE, [toys(1, fault="byte")], 1, 0)


def test_what_a_child_raises_is_told_with_its_words(toys) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SetupError, match="toy: RuntimeError: no such device"):
        toys(1, fault="start")
    with pytest.raises(SetupError, match="toy: RuntimeError: the far end is gone"):
        toys(1, fault="write").run(CASE, 1, ("write",))


def has_stopped(pid: int) -> bool:
    """Soon: the signal takes effect when the process next runs."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return True
        time.sleep(0.01)
    return False


def test_those_that_poll_are_stopped_between_their_passes(toys) -> None:  # type: ignore[no-untyped-def]
    fleet = toys(1, rests=True)
    [child] = fleet._children
    assert has_stopped(child.pid)
    assert fleet.run(CASE, 1, ("write", "read")).wrong_blocks == 0
    assert has_stopped(child.pid)


def test_a_process_that_ends_or_is_silent_is_told_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    ended = ChildProcess("gone", [sys.executable, "-c", "import sys; sys.exit('no port')"], log)
    with pytest.raises(SetupError, match="gone ended; the end of its log:\nno port"):
        ended.read_line(20)
    ended.close()
    silent = ChildProcess("silent", ["sleep", "30"], log)
    with pytest.raises(SetupError, match=r"silent said nothing for 0\.05 s"):
        silent.read_line(0.05)
    silent.close()
    assert silent.has_ended()
    with pytest.raises(SetupError, match="none did not start"):
        ChildProcess("none", [str(tmp_path / "none")], log)
