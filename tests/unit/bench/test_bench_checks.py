"""The checks' arithmetic: which line is short, and what it says, from canned figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infinistore.bench.checks import clients, index, integrity, latency, line, peers, report, table
from infinistore.bench.checks.line import Line, ahead, as_markdown, as_text, at_least, not_measured
from infinistore.bench.checks.scope import Check, Scope
from infinistore.bench.figures import (
    Case,
    Figure,
    Sample,
    batch_p99,
    percentile,
    ratios,
)
from infinistore.bench.latency import UNIX, Latencies
from infinistore.bench.peers.table import PEERS, Peer
from infinistore.bench.rounds import CaseResult
from infinistore.bench.run import Options
from infinistore.errors import SetupError

KIB = 1024
LINE = Line("shm write", "8.00 GB/s", "9.00 GB/s memcpy", "0.89 (0.88-0.90)", ">= 0.90", ok=False)


def test_an_interval_leaves_out_extremes_only_where_enough_rounds_stay() -> None:
    assert Figure.interval_of([9.0, 1.0, 2.0, 3.0, 4.0]) == Figure(3.0, 1.0, 9.0)
    assert Figure.interval_of(map(float, range(7))) == Figure(3.0, 0.0, 6.0)
    assert Figure.interval_of(map(float, range(8))) == Figure(3.5, 1.0, 6.0)
    assert Figure.interval_of(map(float, range(11))) == Figure(5.0, 2.0, 8.0)
    assert Figure.interval_of([2.0]) == Figure(2.0, 2.0, 2.0)


def test_a_percentile_is_the_nearest_rank() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentile(values, 0.99) == 99.0
    assert percentile(reversed(values), 0.5) == 50.0
    assert percentile([3.0], 0.99) == 3.0
    with pytest.raises(ValueError, match="no percentile"):
        percentile([], 0.5)


def test_ratios_are_of_rounds_and_of_whatever_is_asked_for() -> None:
    ours = [Sample(1.0, 0.0, batches_s=(0.1, 0.2)), Sample(2.0, 0.0, batches_s=(0.1, 0.5))]
    theirs = [Sample(4.0, 0.0, batches_s=(0.4,)), Sample(4.0, 0.0, batches_s=(1.5,))]
    assert ratios(ours, theirs) == [4.0, 2.0]
    assert ratios(ours, theirs, batch_p99) == [2.0, 3.0]


def test_a_share_of_a_limit_is_judged_by_its_median() -> None:
    assert at_least(Figure(0.9, 0.1, 2.0), 0.9) == ("0.90 (0.10-2.00)", ">= 0.90", True)
    assert not at_least(Figure(0.899, 0.8, 2.0), 0.9)[2]


def test_ahead_of_a_peer_is_judged_by_the_whole_interval() -> None:
    assert ahead(Figure(5.0, 1.01, 9.0), 1.0) == ("5.00 (1.01-9.00)", "> 1.00", True)
    assert not ahead(Figure(5.0, 1.0, 9.0), 1.0)[2]
    assert ahead(Figure(3.2, 3.0, 9.0), 3.0) == ("3.20 (3.00-9.00)", ">= 3.00", True)
    assert not ahead(Figure(3.2, 2.99, 9.0), 3.0)[2]


def test_lines_stand_in_columns_and_end_in_their_verdict() -> None:
    texts = as_text([LINE, not_measured("a peer", "no network\nsecond line")])
    assert texts[0].endswith("  short")
    assert texts[1].endswith("  short")
    assert texts[0].index("8.00") == texts[1].index("not measured: no network")
    assert "second line" not in texts[1]
    for part in ("shm write", "8.00 GB/s", "9.00 GB/s memcpy", "0.89", ">= 0.90"):
        assert part in texts[0]
    assert as_markdown([LINE]).splitlines()[2].count("|") == 7


BENCH_STORE = """\
1000000 keys of 32 bytes, 1 threads
put into a free pool                    1.49 M/s a core     671.1 ns
index memory                           176.3 bytes a key (and 123 KiB for the empty store)
exists, present                         3.10 M/s a core     322.6 ns
exists, absent                          6.80 M/s a core     147.1 ns
exists in batches, present              7.25 M/s a core     137.9 ns
find and drop                           2.10 M/s a core     476.2 ns
find and drop, all threads              9.10 M/s a core     109.9 ns
match_prefix of 1024, a key             4.99 M/s a core     200.4 ns
"""


def test_the_index_is_judged_by_the_best_line_of_each_verb() -> None:
    figures = index.parse(BENCH_STORE)
    assert figures.rates["exists in batches, present"] == 7.25
    assert figures.bytes_a_key == 176.3
    found = {one.name: one for one in index.lines_of(figures, 1_000_000)}
    present = found["index exists, present, 1,000,000 keys"]
    assert present.ok
    assert "7.25 M/s a core (exists in batches, present)" in present.ours
    assert found["index exists, absent, 1,000,000 keys"].ok
    assert not found["index match_prefix, 1,000,000 keys"].ok
    assert "2.10 M/s" in found["index find, 1,000,000 keys"].ours  # of one core, not of all
    assert found["index memory"].ok


def test_an_index_figure_that_is_missing_is_short() -> None:
    lines = index.lines_of(index.parse("usage: bench_store"), 1000)
    assert [one.ok for one in lines] == [False] * 5


def scope_for(tmp_path: Path, **options: object) -> Scope:
    return Scope(
        options=Options(**options),  # type: ignore[arg-type]
        logs=tmp_path,
        peers=tmp_path / "peers",
        bench_store=tmp_path / "bench_store",
    )


def test_an_index_program_that_is_not_built_or_fails_is_short(tmp_path: Path) -> None:
    scope = scope_for(tmp_path)
    [line_found] = index.find(scope)
    assert (line_found.ok, "make build" in line_found.ours) == (False, True)
    scope.bench_store.write_text("#!/bin/sh\necho no memory >&2; exit 3\n")
    scope.bench_store.chmod(0o755)
    [line_found] = index.find(scope)
    assert (line_found.ok, "no memory" in line_found.ours) == (False, True)


def peer_result(ours_s: float, theirs_s: float, block_bytes: int, peer: Peer) -> CaseResult:
    found = CaseResult(Case(block_bytes, 64, 4))
    for verb in ("write", "read"):
        found.samples[peer.transport, verb] = [Sample(ours_s, 0.1, 0.1, (ours_s / 16,) * 16)] * 5
        found.samples[peer.name, verb] = [Sample(theirs_s, 0.1, 0.1, (theirs_s / 16,) * 16)] * 5
    return found


def named(name: str) -> Peer:
    return next(peer for peer in PEERS if peer.name == name)


@pytest.mark.parametrize(
    ("name", "block_bytes", "factor"),
    [
        ("Mooncake TCP", 4 * KIB, 10.0),
        ("Mooncake TCP", 64 * KIB, 3.0),
        ("Redis TCP, mget", 4 * KIB, 3.0),
        ("Redis TCP, pipeline", 64 * KIB, 3.0),
        ("NIXL same host", 1024 * KIB, 2.5),
    ],
)
def test_some_peers_have_a_factor_to_be_ahead_by(
    name: str, block_bytes: int, factor: float
) -> None:
    peer = named(name)
    result = peer_result(1.0, factor, block_bytes, peer)
    enough = peers.lines_of(peer, result, result)[:2]
    result = peer_result(1.0, factor - 0.1, block_bytes, peer)
    short = peers.lines_of(peer, result, result)[2:]
    assert [one.ok for one in enough] == [True, True]
    assert [one.ok for one in short] == [False, True]  # its p99 has only to be ahead
    assert enough[0].target == f">= {factor:.2f}"
    assert name in enough[0].beside
    assert "p99 of 4" in enough[1].name


def test_every_other_peer_and_size_has_to_be_beaten() -> None:
    peer = named("NIXL TCP")
    result = peer_result(1.0, 1.0, 64 * KIB, peer)
    [throughput, p99] = peers.lines_of(peer, result, result)[:2]
    assert (throughput.target, throughput.ok, p99.ok) == ("> 1.00", False, False)


def test_many_clients_stand_beside_one() -> None:
    results = CaseResult(Case(64 * KIB, 4096, 256))
    results.samples["1", "write"] = [Sample(1.0, 0.1)] * 5
    results.samples["8", "write"] = [Sample(1.1, 0.1)] * 5
    found = clients.line_of(results, "shm", 8, "write")
    assert (found.name, found.ratio, found.ok) == (
        "shm write 64KiB, 8 clients",
        "0.91 (0.91-0.91)",
        True,
    )


def test_verified_reads_may_cost_a_twentieth() -> None:
    results = CaseResult(Case(256 * KIB, 1024, 64))
    results.samples[integrity.OFF, "read"] = [Sample(1.0, 0.1)] * 5
    for seconds, ok in ((1.05, True), (1.06, False)):
        results.samples[integrity.ON, "read"] = [Sample(seconds, 0.1)] * 5
        found = integrity.line_of(results, "tcp")
        assert (found.name, found.target, found.ok) == (
            "tcp read 256KiB, verified",
            ">= 0.95",
            ok,
        )


def latencies_of(get_us: float, exists_us: float, trip_us: float) -> Latencies:
    def rounds(us: float) -> list[list[float]]:
        return [[us * 1e-6] * 10] * 5

    return Latencies(
        {"shm get": rounds(get_us), "shm exists": rounds(exists_us), UNIX: rounds(trip_us)}
    )


def test_a_get_is_counted_in_round_trips_and_a_lookup_beyond_one() -> None:
    found = latencies_of(get_us=60, exists_us=319, trip_us=20)
    assert latency.get_line(found).ok
    assert latency.get_line(found).ratio == "3.00 (3.00-3.00)"
    assert latency.lookup_line(found, "shm", "exists").ok
    short = latencies_of(get_us=61, exists_us=321, trip_us=20)
    assert not latency.get_line(short).ok
    assert not latency.lookup_line(short, "shm", "exists").ok
    assert "0.301 ms beyond" in latency.lookup_line(short, "shm", "exists").ratio


def test_a_check_that_fails_is_one_short_line_and_the_others_still_run(tmp_path: Path) -> None:
    def fails(scope: Scope) -> list[Line]:
        raise SetupError("no pool of that size\nat all")

    checks = [Check("a", "fails", fails), Check("b", "runs", lambda scope: [LINE])]
    found = table.run_checks(checks, scope_for(tmp_path))
    assert found[0].lines == [line.not_measured("a", "no pool of that size")]
    assert found[1].lines == [LINE]
    assert report.summary(found).startswith("2 targets, 2 short")
    record = json.loads(json.dumps(report.as_json(found, {"CPU": "x"})))
    assert record["checks"][1]["lines"][0]["verdict"] == "short"
    assert report.as_markdown(found, {"CPU": "x"}).count("| what | ours |") == 2


def test_every_check_is_in_the_table_once() -> None:
    names = [check.name for check in table.CHECKS]
    assert names == sorted(set(names), key=names.index)
    assert {"limits", "latency", "index", "integrity", "peers", "clients"} <= set(names)
