"""`infinistore top`: a running server, live; and what pools of other sizes would have had."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from infinistore.cli._admin import Admin, admin_options, find_admin
from infinistore.cli._table import console, make_table
from infinistore.cli.namespaces import row
from infinistore.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Group

NAMESPACES_SHOWN, HOTTEST_SHOWN = 8, 5
Counters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Frame:
    """What went on between two looks at a server, and what it holds at the second."""

    seconds: float
    received_bytes_s: float
    sent_bytes_s: float
    requests_s: float
    evictions_s: float
    hit_rate: float | None  # of the keys that were asked for meanwhile; None: none were
    hit_rate_ever: float | None
    misses_new: int
    misses_evicted: int
    misses_erased: int
    capacity_bytes: int
    used_bytes: int
    keys: int
    sessions: int


def frame(before: Counters, now: Counters, seconds: float) -> Frame:
    """The difference of two snapshots, as rates."""

    def grown(name: str) -> int:
        # A server that started anew counts from 0 again.
        return max(0, int(now.get(name, 0)) - int(before.get(name, 0)))

    requests = sum(grown(name) for name in now if name.startswith("requests_"))
    capacity = int(now.get("capacity_bytes", 0))
    return Frame(
        seconds=round(seconds, 3),
        received_bytes_s=grown("received_bytes") / seconds,
        sent_bytes_s=grown("sent_bytes") / seconds,
        requests_s=requests / seconds,
        evictions_s=grown("evictions") / seconds,
        hit_rate=_share(grown("hits"), grown("misses")),
        hit_rate_ever=_share(int(now.get("hits", 0)), int(now.get("misses", 0))),
        misses_new=grown("misses_new"),
        misses_evicted=grown("misses_evicted"),
        misses_erased=grown("misses_erased"),
        capacity_bytes=capacity,
        used_bytes=capacity - int(now.get("free_bytes", 0)),
        keys=int(now.get("keys", 0)),
        sessions=int(now.get("sessions", 0)),
    )


def _share(hits: int, misses: int) -> float | None:
    return hits / (hits + misses) if hits + misses else None


@click.command("top")
@click.option("--interval", "interval_s", type=click.FloatRange(0.1, 3600), default=1.0,
              show_default=True, help="Seconds between two looks.")  # fmt: skip
@click.option("--count", type=click.IntRange(1), default=None,
              help="So many looks; by default no end on a terminal, else one.")  # fmt: skip
@click.option("--what-if", is_flag=True, help="Also the hit rates of pools of other sizes.")
@admin_options
def command(
    interval_s: float,
    count: int | None,
    what_if: bool,
    address: str | None,
    token_file: str | None,
    as_json: bool,
) -> None:
    """Shows throughput, hit rate, pool, misses by cause, namespaces and what is read most.

    Until Ctrl-C. With --json a line for each look. The hit rates of --what-if are of LRU pools, by
    a sample of what was asked for lately.
    """
    admin = find_admin(address, token_file)
    if count is None and not sys.stdout.isatty():
        count = 1
    looks = _looks(admin, interval_s, count, what_if)
    try:
        if as_json:
            for look in looks:
                click.echo(json.dumps(look | {"frame": asdict(look["frame"])}))
        else:
            _show(admin, looks)
    except KeyboardInterrupt:
        pass  # the way to end it


def _looks(
    admin: Admin, interval_s: float, count: int | None, what_if: bool
) -> Iterator[dict[str, Any]]:
    before, seen = admin.ask("GET", "/stats"), time.monotonic()
    while count is None or count > 0:
        time.sleep(interval_s)
        now, at = admin.ask("GET", "/stats"), time.monotonic()
        look: dict[str, Any] = {"admin": str(admin), "frame": frame(before, now, at - seen)}
        spaces = admin.ask("GET", "/namespaces", {"limit": str(NAMESPACES_SHOWN)})
        look["namespaces"] = spaces["namespaces"]
        limit = {"limit": str(HOTTEST_SHOWN)}
        look["hottest"] = admin.ask("GET", "/hottest", limit)["hottest"]
        if what_if:
            look["what_if"] = admin.ask("GET", "/whatif")
        yield look
        before, seen = now, at
        count = None if count is None else count - 1


def _show(admin: Admin, looks: Iterator[dict[str, Any]]) -> None:
    screen = console()
    if not sys.stdout.isatty():
        for look in looks:
            screen.print(_screen(admin, look))
        return
    from rich.live import Live

    with Live(console=screen, auto_refresh=False, screen=True) as live:
        for look in looks:
            live.update(_screen(admin, look), refresh=True)


def _screen(admin: Admin, look: Mapping[str, Any]) -> Group:
    from rich.console import Group

    parts = [make_table(("", ""), rows(look["frame"]), title=f"InfiniStore at {admin}")]
    headings = ("namespace", "keys", "bytes", "hit rate", "last use")
    spaces = [row(space) for space in look["namespaces"]]
    parts.append(make_table(headings, spaces, numbers=range(1, 5)))
    hot = [
        (each["namespace"], each["key"], f"{each['keys']:,}",
         f"{format_bytes(int(each['bytes_per_s']))}/s")
        for each in look["hottest"]
    ]  # fmt: skip
    if hot:
        parts.append(make_table(("hottest of", "key", "keys", "read"), hot, numbers=(2, 3)))
    if "what_if" in look:
        parts.append(make_table(("pool", "hit rate", ""), points(look["what_if"]), numbers=(0, 1)))
    return Group(*(item for part in parts for item in (part, "")))


def rows(shown: Frame) -> list[tuple[str, str]]:
    """The lines of a look."""
    pool = format_bytes(shown.capacity_bytes)
    used = 100 * shown.used_bytes / shown.capacity_bytes if shown.capacity_bytes else 0.0
    return [
        ("in", f"{format_bytes(int(shown.received_bytes_s))}/s"),
        ("out", f"{format_bytes(int(shown.sent_bytes_s))}/s"),
        ("requests", f"{shown.requests_s:,.0f}/s from {shown.sessions:,} connections"),
        ("pool", f"{used:.1f} % of {pool} used, {shown.keys:,} keys"),
        ("evictions", f"{shown.evictions_s:,.0f}/s"),
        ("hit rate", f"{_percent(shown.hit_rate)} now, {_percent(shown.hit_rate_ever)} ever"),
        ("misses", f"{shown.misses_new:,} never seen, {shown.misses_evicted:,} evicted, "
                   f"{shown.misses_erased:,} erased in {format_seconds(shown.seconds)}"),
    ]  # fmt: skip


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def points(curve: Mapping[str, Any]) -> Sequence[tuple[str, str, str]]:
    """The lines of a curve; a pool of the present size is marked."""
    told = []
    for point in curve["points"]:
        rate = point["hit_rate"]
        is_now = point["pool_bytes"] == curve["capacity_bytes"]
        mark = "now" if is_now else ""
        bar = "" if rate is None else "#" * round(40 * rate)
        shown = _percent(rate) if curve["asked"] else "-"
        told.append((format_bytes(point["pool_bytes"]), shown, f"{bar} {mark}".strip()))
    return told
