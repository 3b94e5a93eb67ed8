"""The sweep: what it plans, its tables and charts from canned points, and a tiny run of it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from infinistore.bench import sweep, sweep_report
from infinistore.bench.figures import Case, Figure, Sample
from infinistore.bench.plot import COLOURS, Chart, Line, as_svg, decades
from infinistore.bench.sweep import Call, Plan, Point, Sweep

SVG = "{http://www.w3.org/2000/svg}"
MIB = 1024**2


def test_a_plan_has_every_size_with_every_batch_that_fits() -> None:
    cases = sweep.batch_cases(Plan())
    assert {case.block_bytes for case in cases} == set(sweep.SIZES)
    assert {case.batch_blocks for case in cases} == set(sweep.BATCHES)
    assert all(case.block_bytes * case.batch_blocks <= 64 * MIB for case in cases)
    assert all(case.pass_bytes <= 64 * MIB for case in cases)
    assert all(case.block_count % case.batch_blocks == 0 for case in cases)
    assert Case(4096, 10_000, 10_000, waits=True) in cases
    assert all(case.batch_blocks <= 1000 for case in sweep.usual_cases(Plan()))


def test_a_quick_plan_is_a_part_of_the_whole() -> None:
    part = sweep.quick(Plan(seed=7))
    assert set(part.sizes) < set(sweep.SIZES)
    assert set(part.batches) < set(sweep.BATCHES)
    assert (part.rounds, part.seed) == (3, 7)


def point(series: str, name: str, verb: str, size: int, clients: int, gb_s: float) -> Point:
    samples = [Sample(1 / gb_s, 0.3, 0.2, (0.004, 0.006))] * 5
    case = Case(size, max(1, 10**9 // size), 1)
    return sweep.point_of(series, name, verb, case, clients, samples)  # type: ignore[arg-type]


POINTS = [
    *(point("peers", name, verb, size, 1, speed)
      for name, speed in (("memcpy", 9.0), ("shm", 8.0), ("NIXL same host", 2.0), ("tcp", 1.5),
                          ("Mooncake TCP", 0.5))
      for verb in ("write", "read") for size in (4096, MIB)),
    *(point("clients", "shm", "write", 65536, count, 7.0) for count in (1, 2)),
    point("batches", "tcp", "exists", 4096, 1, 1.0),
]  # fmt: skip
CALLS = [Call("unix round trip", Figure(12e-6, 11e-6, 13e-6), Figure(30e-6, 29e-6, 31e-6))]
FOUND = Sweep(
    POINTS, CALLS, {"Redis TCP, mget": "not installed; run: make peer-redis"}, ["one case"], 99
)


def test_a_point_has_throughput_latency_and_cpu_of_its_rounds() -> None:
    found = POINTS[0]
    assert found.gb_s is not None
    assert found.gb_s.median == pytest.approx(9.0, rel=1e-4)
    assert found.p50_s == Figure(0.004, 0.004, 0.004)
    assert found.p99_s == Figure(0.006, 0.006, 0.006)
    assert found.cpu_client_s_gb == pytest.approx(0.3, rel=1e-4)
    lookup = POINTS[-1]
    assert (lookup.gb_s, lookup.cpu_client_s_gb) == (None, None)
    assert lookup.operations_s.median == pytest.approx(10**9 // 4096)


def test_tables_and_record_hold_every_point_and_what_is_missing() -> None:
    record = json.loads(json.dumps(sweep_report.as_json(FOUND, {"CPU": "x"}, {"rounds": "5"})))
    assert len(record["points"]) == len(POINTS)
    assert record["left_out"] == ["one case"]
    text = sweep_report.as_markdown(FOUND, {"CPU": "x"}, {"rounds": "5"})
    assert text.count("\n| ") == 4 * 2 + len(CALLS) + len(POINTS)
    assert "make peer-redis" in text
    assert "| unix round trip | 12.0 (11.0-13.0) | 30.0 (29.0-31.0) |" in text
    assert "No time was left for: one case" in text
    assert len(sweep_report.cells(POINTS[0])) == len(sweep_report.HEADINGS)


def test_charts_hold_ours_the_limits_and_the_peers_of_one_transport() -> None:
    charts = {chart.title: chart for chart in sweep_report.charts(POINTS)}
    same_host = charts["Write, same host: one client, batches of 4 MiB"]
    assert [line.name for line in same_host.lines] == [
        "InfiniStore, shared memory",
        "memcpy",
        "NIXL same host",
    ]
    assert [line.is_limit for line in same_host.lines] == [False, True, False]
    tcp = charts["Read, TCP: one client, batches of 4 MiB"]
    assert [line.name for line in tcp.lines] == ["InfiniStore, TCP", "Mooncake TCP"]
    [clients] = charts["Write, clients together"].lines
    assert [x for x, _ in clients.points] == [1.0, 2.0]
    assert "Read, clients together" not in charts


def polylines(svg: str) -> list[list[tuple[float, float]]]:
    return [
        [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]  # type: ignore[misc]
        for line in ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    ]


def test_a_chart_is_well_formed_and_higher_means_more() -> None:
    lines = [Line("a < b", [(1, 1), (10, 100)]), Line("limit", [(1, 5)], is_limit=True)]
    svg = as_svg([Chart("A & B", "x", "y", lines), Chart("empty", "x", "y", [])])
    [first, second] = polylines(svg)
    assert first[0][0] < first[1][0]  # to the right
    assert first[0][1] > first[1][1]  # and up: SVG counts from above
    assert first[0][1] > second[0][1] > first[1][1]
    assert "stroke-dasharray" in svg
    texts = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"a < b", "A & B", "empty: nothing measured"} <= set(texts)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="no charts"):
        as_svg([])
    crowd = [Line(str(n), [(1, 1)]) for n in range(len(COLOURS) + 1)]
    with pytest.raises(ValueError, match="9 lines, 8 colours"):
        as_svg([Chart("many", "x", "y", crowd)])


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(1, 10, [1, 2, 5, 10]), (0.3, 0.4, [0.2, 0.5]), (3, 30, [2, 5, 10, 20, 50]), (5, 5, [5, 10])],
)
def test_ticks_enclose_the_values(low: float, high: float, ticks: list[float]) -> None:
    assert decades(low, high) == pytest.approx(ticks)


def test_a_tiny_sweep_of_our_transports_is_verified_and_complete(tmp_path: Path) -> None:
    plan = Plan(
        sizes=(4096,),
        batches=(1, 10),
        clients=(1, 2),
        rounds=1,
        peers=tmp_path / "none",
        pass_bytes=MIB,
    )
    found = sweep.run_sweep(plan, tmp_path)
    seen = {(p.series, p.name, p.verb, p.batch_blocks, p.clients) for p in found.points}
    for transport in ("shm", "tcp"):
        for verb in ("write", "read", "exists", "match_prefix"):
            assert ("batches", transport, verb, 1, 1) in seen
            assert ("batches", transport, verb, 10, 1) in seen
            assert ("clients", transport, verb, 1000, 2) in seen
    assert {p.name for p in found.points if p.series == "peers"} == {
        *("shm", "tcp", "memcpy", "stream copy", "1 socket", "2 sockets")
    }
    assert "make peer-mooncake" in found.missing["Mooncake TCP"]
    assert found.blocks_verified > 0
    assert {call.name for call in found.calls} == {
        *("unix round trip", "TCP round trip", "eventfd round trip"),
        *(f"{on} {verb}" for on in ("shm", "tcp") for verb in ("get", "exists", "match_prefix")),
    }
    assert all(0 < call.p50_s.median <= call.p99_s.median < 10 for call in found.calls)
    assert found.left_out == []


def test_a_sweep_without_time_says_what_it_left_out(tmp_path: Path) -> None:
    plan = Plan(
        sizes=(4096,), batches=(1,), clients=(1,), transports=("tcp",), rounds=1,
        peers=tmp_path / "none", budget_s=0, pass_bytes=MIB,
    )  # fmt: skip
    found = sweep.run_sweep(plan, tmp_path)
    assert (found.points, found.calls) == ([], [])
    assert len(found.left_out) == 4
