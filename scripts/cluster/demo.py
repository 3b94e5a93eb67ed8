"""`make cluster-demo`: a cluster under a load while nodes come and go, second by second.

Prints what each node serves, copies and hit rate, and how long it took to be balanced again after
each event; build/cluster-demo.svg is its picture.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cluster.check import BALANCED, TRACE, ZIPF
from cluster.figures import first_answers, imbalance, owned_by, percentile
from cluster.rig import Load, Rig
from cluster.timeline import Panel, as_svg

WINDOW_S = 3  # over which balance is looked at


@dataclass(slots=True)
class Second:
    at_s: float
    served: dict[str, int]
    copies: int
    hit_rate: float


@dataclass(slots=True)
class Film:
    """One run, as it is seen each second."""

    rig: Rig
    load: Load
    began_s: float = field(default_factory=time.monotonic)
    seconds: list[Second] = field(default_factory=list)
    events: list[tuple[float, str]] = field(default_factory=list)
    _before: dict[str, int] = field(default_factory=dict)
    _asked: tuple[int, int] = (0, 0)

    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    def event(self, text: str) -> None:
        self.events.append((self.now_s(), text))
        print(f"{self.now_s():6.1f} s  {text}", flush=True)

    def roll(self, seconds: float) -> None:
        """Looks on for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(1 - self.now_s() % 1)
            self._take()

    def _take(self) -> None:
        total = self.rig.served()
        served = {name: size - self._before.get(name, size) for name, size in total.items()}
        self._before = total
        asked = (self.load.hits, self.load.hits + self.load.misses)
        hits, keys = asked[0] - self._asked[0], asked[1] - self._asked[1]
        self._asked = asked
        copies = sum(len(names) for names in self.rig.copies().values())
        seen = Second(self.now_s(), served, copies, hits / keys if keys else math.nan)
        self.seconds.append(seen)
        shown = "  ".join(f"{name} {size / 2**20:5.0f}" for name, size in sorted(served.items()))
        print(
            f"{seen.at_s:6.1f} s  MiB/s: {shown}  max/mean {self.balance(len(self.seconds)):.2f}  "
            f"copies {copies:3d}  hits {100 * seen.hit_rate:5.1f} %",
            flush=True,
        )

    def balance(self, until: int) -> float:
        """Over the last seconds, of the nodes that are there at their end."""
        window = self.seconds[max(0, until - WINDOW_S) : until]
        names = window[-1].served
        return imbalance({name: sum(s.served.get(name, 0) for s in window) for name in names})

    def recoveries(self) -> list[tuple[str, float]]:
        """For each event the time until all was balanced over a window that began after it."""
        found = []
        for at_s, text in self.events:
            after = [i for i, second in enumerate(self.seconds) if second.at_s > at_s + WINDOW_S]
            good = next((i for i in after if self.balance(i + 1) <= BALANCED), None)
            found.append((text, self.seconds[good].at_s - at_s if good is not None else math.inf))
        return found

    def picture(self) -> str:
        names = sorted({name for second in self.seconds for name in second.served})
        rates = {
            name: [(s.at_s, s.served[name] / 2**20) for s in self.seconds if name in s.served]
            for name in names
        }
        ratios = [(s.at_s, self.balance(i + 1)) for i, s in enumerate(self.seconds)]
        balance = [point for point in ratios if not math.isnan(point[1])]
        hits = [(s.at_s, 100 * s.hit_rate) for s in self.seconds if not math.isnan(s.hit_rate)]
        panels = [
            Panel("MiB/s served", rates),
            Panel("max/mean over 3 s", {"": balance}, BALANCED),
            Panel("copies", {"": [(s.at_s, s.copies) for s in self.seconds]}),
            Panel("hit rate, %", {"": hits}),
        ]
        return as_svg(panels, self.events)


def kill(film: Film, name: str, groups: Callable[[], set[str]]) -> None:
    own = owned_by(name, sorted(film.rig.nodes), groups())
    at_s = time.monotonic()
    film.event(f"{name} killed")
    film.rig.kill(name)
    film.roll(8)
    waits = first_answers(film.load.between(at_s, at_s + 5), own)
    print(
        f"first answers for its keys: p99 {1000 * percentile(waits, 0.99):.0f} ms of {len(waits)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="cluster-demo", description=__doc__)
    parser.add_argument("--load", choices=("zipf", "trace"), default="zipf")
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--picture", type=Path, default=Path("build/cluster-demo.svg"))
    given = parser.parse_args()
    flags = ZIPF if given.load == "zipf" else (f"--trace={given.trace}", "--size=16384")
    with contextlib.closing(Rig(pool="512MiB")) as rig:
        rig.start("n1", "n2", "n3")
        with contextlib.closing(Load(rig.url, 2, *flags)) as load:
            film = Film(rig, load)
            film.event("load begins")
            film.roll(15)
            if given.load == "zipf":
                film.event("other chains are hot")
                load.change_hot_set(1)
                film.roll(12)
            film.event("n4 joins")
            rig.launch("n4")
            film.roll(15)
            kill(film, "n1", lambda: {asked.group for asked in load.requests})
            film.event("n1 is back")
            rig.launch("n1")
            film.roll(15)
            film.event("n2 drains")
            rig.nodes["n2"].admin("/drain", method="POST")
            leaving = rig.nodes.pop("n2")
            film.roll(12)
            status = leaving.stop()
            film.event("etcd is killed")
            rig.etcd.kill()
            film.roll(6)
            film.event("etcd is back")
            rig.etcd.start()
            film.roll(6)
    for text, took_s in film.recoveries():
        print(f"balanced after {took_s:5.1f} s: {text}")
    print(f"wrong values {load.wrong}, failed calls {len(load.errors)}, drain exit {status}")
    given.picture.parent.mkdir(exist_ok=True)
    given.picture.write_text(film.picture())
    print(f"picture: {given.picture}")
    return 1 if load.wrong or load.errors or status else 0


if __name__ == "__main__":
    sys.exit(main())
