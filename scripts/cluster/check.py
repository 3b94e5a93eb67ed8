"""`make cluster-check`: every line that must hold of the cluster, measured now."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import infinistore
from cluster.figures import (
    Line,
    at_most,
    first_answers,
    imbalance,
    owned_by,
    part,
    percentile,
)
from cluster.loads import Contents
from cluster.rig import Asked, Load, Rig
from infinistore.cluster.placement import group_id

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT.parent / "shared" / "traces" / "mooncake_trace_1000.jsonl"
NODES = ("n1", "n2", "n3", "n4")
JOINING = ("n5", "n6", "n7")
BALANCED, SKEWED = 1.25, 1.5
WARM_S, MEASURE_S = 12.0, 10.0
SETTLED_S = 4.0  # after a join
# Clients that compute between their reads, as engines do: times mean something then.
PACED = ("--pause-s=0.01",)
SMALL = ("--blocks=8", "--size=32768", "--chains=60")
ZIPF = ("--chains=60",)


@contextlib.contextmanager
def cluster(*flags: str, nodes: tuple[str, ...] = NODES) -> Iterator[Rig]:
    with contextlib.closing(Rig(*flags, pool="512MiB")) as rig:
        rig.start(*nodes)
        yield rig


@contextlib.contextmanager
def load(rig: Rig, *flags: str, clients: int = 2) -> Iterator[Load]:
    with contextlib.closing(Load(rig.url, clients, *flags)) as made:
        yield made
        assert not made.wrong, f"{made.wrong} wrong values"


def warm_imbalance(rig: Rig, flags: tuple[str, ...]) -> float:
    with load(rig, *flags) as made:
        await_hits(made)
        time.sleep(WARM_S)
        return imbalance(rig.served_in(MEASURE_S))


def await_hits(made: Load, limit_s: float = 90.0) -> None:
    """Until what is asked for has been written once."""
    end = time.monotonic() + limit_s
    share = 0.0
    while share < 0.98 and time.monotonic() < end:
        hits, misses = made.hits, made.misses
        time.sleep(2.0)
        hits, misses = made.hits - hits, made.misses - misses
        share = hits / (hits + misses) if hits else 0.0


def spreading(trace: Path) -> Iterator[Line]:
    loads = {"zipf(1.0)": ZIPF}
    if trace.exists():
        loads["mooncake_trace_1000"] = (f"--trace={trace}", "--size=16384")
    else:
        yield Line("mooncake_trace_1000", "no such file", str(trace), False)
    without = {}
    with cluster("--copies-max=0") as rig:
        for name, flags in loads.items():
            without[name] = warm_imbalance(rig, flags)
    with cluster() as rig:
        for name, flags in loads.items():
            figure, off = warm_imbalance(rig, flags), without[name]
            yield Line(
                f"{name}: max/mean served",
                f"{figure:.2f}, without copies {off:.2f}",
                f"<= {BALANCED}, where > {SKEWED}",
                figure <= BALANCED and off > SKEWED,
            )
        yield from changing(rig)


def changing(rig: Rig) -> Iterator[Line]:
    with load(rig, *ZIPF) as made:
        time.sleep(WARM_S)
        made.change_hot_set(1)
        yield at_most("hot set changes: balanced again after", settles(rig), 10, " s")
        most = len(rig.copies())
    left = min(len(rig.copies()) for _ in range(20) if time.sleep(1) is None)
    yield Line("no load: groups with copies", f"{most}, then {left}", "0 within 20 s", left == 0)


def settles(rig: Rig, limit_s: float = 30.0) -> float:
    """When three seconds that are balanced, with the next three as well, have ended."""
    began = time.monotonic()
    first = math.nan
    while time.monotonic() - began < limit_s:
        is_balanced = imbalance(rig.served_in(3.0)) <= BALANCED
        if is_balanced and not math.isnan(first):
            return first
        first = time.monotonic() - began if is_balanced else math.nan
    return math.inf


def joining(rig: Rig, made: Load) -> Iterator[Line]:
    """Several joins, since the slowest hundredth of one's requests are six or seven."""
    before: list[Asked] = []
    moving: list[Asked] = []
    slowest_s = 0.0
    time.sleep(WARM_S)
    for name in JOINING:
        quiet_at = time.monotonic()
        for _ in range(4):  # as later: to ask all nodes takes of the CPUs, too
            rig.served_in(2.0)
        before += made.between(quiet_at, time.monotonic())
        began = time.monotonic()
        rig.launch(name)
        moving_at = (
            time.monotonic()
        )  # its program has started: that took of the CPUs which all share
        fair_s = math.inf
        while time.monotonic() - began < 40:
            share = part(rig.served_in(2.0), name)
            if abs(share - 1) <= 0.2:
                fair_s = time.monotonic() - began
                break
        moving += made.between(moving_at, time.monotonic())
        slowest_s = max(slowest_s, fair_s)
        time.sleep(SETTLED_S)
    yield at_most("join: fair share (within 20 %) after", slowest_s, 30, " s")
    then, now = (percentile([r.took_s for r in each], 0.99) for each in (before, moving))
    more = f" ({then * 1e3:.1f}, then {now * 1e3:.1f} ms; {len(JOINING)} joins)"
    yield at_most("join: p99 of requests, in times of before", now / then, 1.5, more=more)


def crashing(rig: Rig, made: Load, kills: int) -> Iterator[Line]:
    waits: list[float] = []
    lost = copied = 0
    for victim in [NODES[index % 4] for index in range(kills)]:
        names = sorted(rig.nodes)
        seen = {asked.group for asked in made.requests}
        own = owned_by(victim, names, seen)
        there = rig.copies()
        safe = {group for group in own if f"{group_id(group.encode()):016x}" in there}
        killed_at = time.monotonic()
        rig.kill(victim)
        time.sleep(5)
        after = made.between(killed_at, killed_at + 4)
        waits += first_answers(after, own)
        hot = [asked for asked in after if asked.group in safe]
        lost += sum(asked.misses for asked in hot)
        copied += len(hot)
        rig.start(victim)
        time.sleep(WARM_S)
    yield at_most(f"crash: p99 of {len(waits)} first answers", percentile(waits, 0.99), 1.0, " s")
    yield Line(
        "crash: misses of groups with copies",
        f"{lost} in {copied} requests",
        "0",
        copied > 0 == lost,
    )


def etcd_away(rig: Rig, made: Load) -> Iterator[Line]:
    before = len(made.errors)
    rig.etcd.kill()
    time.sleep(8)
    rig.etcd.start()
    time.sleep(6)
    yield at_most("etcd killed and restarted: failed calls", len(made.errors) - before, 0)


def draining(rig: Rig) -> Iterator[Line]:
    contents = Contents(64 << 10)
    keys = [b"{kept-%d}%d" % (chain, block) for chain in range(100) for block in range(8)]
    with infinistore.connect(rig.url, "kept", transport="tcp") as store:
        for key in keys:
            store.write_cache(contents.of(key), [(key, 0)], contents.size, unit="bytes")
        store.sync()
        node = rig.nodes["n2"]
        node.admin("/drain", method="POST")
        status = node.process.wait(60)
        lost = 0
        for key in keys:
            value = np.zeros(contents.size, dtype=np.uint8)
            outcomes = store.read_cache(value, [(key, 0)], len(value), unit="bytes").wait()
            lost += not (outcomes.all_ok and np.array_equal(value, contents.of(key)))
    figure = f"{lost} of {len(keys)}, exit status {status}"
    yield Line("drain: values lost", figure, "0, exit status 0", lost == status == 0)


def changes(kills: int) -> Iterator[Line]:
    with cluster() as rig, load(rig, *SMALL, *PACED) as made:
        yield from joining(rig, made)
        yield at_most("join: wrong values", made.wrong, 0)
    with cluster() as rig, load(rig, *SMALL, *PACED) as made:
        time.sleep(WARM_S)
        yield from etcd_away(rig, made)
        yield from crashing(rig, made, kills)
        yield from draining(rig)
        yield at_most("wrong values", made.wrong, 0)


def command(name: str, words: list[str]) -> Line:
    """A line that is a program's exit status."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    last = (done.stdout.strip().splitlines() or ["said nothing"])[-1]
    return Line(name, last[:60], "exit status 0", done.returncode == 0)


def simulation() -> Iterator[Line]:
    """The same decisions at 1,000 nodes; it prints its own lines."""
    words = [sys.executable, "-m", "infinistore", "bench", "cluster", "--nodes", "1000"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout, end="", flush=True)
    figure = f"exit status {done.returncode}"
    yield Line("simulation of 1,000 nodes", figure, "0: its lines hold", done.returncode == 0)


def chaos(minutes: float) -> Iterator[Line]:
    words = [sys.executable, "-m", "chaos", "--nodes=3", f"--minutes={minutes}"]
    yield command(f"chaos over 3 nodes, {minutes:g} min", words)


def main() -> int:
    parser = argparse.ArgumentParser(prog="cluster-check", description=__doc__)
    parser.add_argument("--chaos-minutes", type=float, default=20.0)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument(
        "--trace",
        type=Path,
        default=ROOT.parent / "shared" / "traces" / "mooncake_trace_1000.jsonl",
    )
    parser.add_argument("--only", help="spreading, changes, simulation or chaos")
    given = parser.parse_args()
    sections: dict[str, Callable[[], Iterator[Line]]] = {
        "spreading": lambda: spreading(given.trace),
        "changes": lambda: changes(given.kills),
        "simulation": simulation,
        "chaos": lambda: chaos(given.chaos_minutes),
    }
    lines = []
    for name, section in sections.items():
        if given.only in (None, name):
            for line in section():
                lines.append(line)
                print(line.text(), flush=True)
    return 0 if lines and all(line.holds for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
