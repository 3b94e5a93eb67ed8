"""The simulated cluster: its course in small, and that a bad decision would be seen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from infinistore.bench.cluster.course import Found, imbalance, run_course
from infinistore.bench.cluster.popularity import of_trace, zipf
from infinistore.bench.cluster.readers import Readers
from infinistore.bench.cluster.report import as_json, as_markdown, lines
from infinistore.bench.cluster.simulated import Machine, SimulatedCluster
from infinistore.bench.trace.prompts import Trace
from infinistore.cli import bench_cluster
from infinistore.cluster.spreading import SpreadLimits


@pytest.fixture(scope="module")
def found() -> Found:
    return run_course("Zipf", zipf(600), 4, Machine(), seed=4)


def test_a_course_of_four_nodes_meets_its_targets(found: Found) -> None:
    assert [(ln.name, ln.ours) for ln in lines(found) if not ln.ok] == []
    assert found.without > 1.5
    assert found.copies > 0
    assert as_json([found])["courses"][0]["nodes"] == 4
    assert "| hot set changes |" in as_markdown([found])


def test_a_cluster_that_may_not_copy_is_short() -> None:
    cluster = SimulatedCluster(4, zipf(600), Machine(), SpreadLimits(copies_max=0), seed=4)
    assert imbalance(cluster.run(5.0), cluster.is_up) > 1.5
    assert cluster.copy_count == 0
    assert cluster.moved_bytes == 0


def test_copies_obey_room_and_the_capped_rate() -> None:
    machine = Machine(copy_bytes_per_s=16 << 20, room_bytes=32 << 20)
    cluster = SimulatedCluster(8, zipf(800), machine, SpreadLimits())
    for _ in range(10):
        before = cluster.moved_bytes
        cluster.run(1.0)
        assert cluster.moved_bytes - before <= 8 * 16 * 1.01 * (1 << 20)
    held = np.bincount([node for nodes in cluster.made.values() for node in nodes], minlength=8)
    # Those who decide in one round do not know of each other: a node may take some more.
    assert held.max() * machine.group_bytes <= 3 * machine.room_bytes
    assert cluster.copy_count > 0


def test_a_simulation_is_the_same_every_time() -> None:
    runs = [
        SimulatedCluster(5, zipf(100), Machine(), SpreadLimits(), seed=2).run(3.0) for _ in range(2)
    ]
    assert np.array_equal(runs[0], runs[1])


def test_readers_choose_the_less_loaded_more_often() -> None:
    readers = Readers(1)
    readers.arrange(np.array([0, 1]), {0: [1, 2]})
    alone, pairs = readers.draw(np.array([9e4, 5e4]), np.array([1e9, 1e9, 3e9]))
    assert alone[0] == 0
    assert alone[1] == pytest.approx(5e4, rel=0.05)
    assert pairs.sum() == pytest.approx(9e4, rel=0.05)
    by_node = dict(zip(readers.node.tolist(), pairs.tolist(), strict=True))
    assert by_node[2] < 0.25 * by_node[0]
    assert by_node[0] == pytest.approx(by_node[1], rel=0.4)  # partners are drawn


def test_a_trace_is_read_where_prompts_begin_as_one_before() -> None:
    trace = Trace("t", [[1, 2, 3], [1, 2, 4], [1, 5], [9]])
    assert of_trace(trace).tolist() == [1.0]  # blocks 1 and 2 twice, 1 once: one group
    assert of_trace(Trace("t", [[1, 2, 3], [1, 2, 3]])).tolist() == [2 / 3, 1 / 3]


def test_the_command_writes_what_it_found(tmp_path: Path) -> None:
    target = tmp_path / "found.json"
    ran = CliRunner().invoke(bench_cluster.command, ["--nodes", "4", "--json", str(target)])
    assert ran.exit_code == 0, ran.output
    assert "ok" in ran.output
    assert len(json.loads(target.read_text())["targets"]) == 7
