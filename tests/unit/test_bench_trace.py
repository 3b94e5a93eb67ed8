"""Replayed traces: the arithmetic, published policies on small cases, the store itself."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from infinistore import _native
from infinistore.bench.trace.churn import MIXES, churn
from infinistore.bench.trace.prompts import Trace, read_trace
from infinistore.bench.trace.published import PUBLISHED, Lru
from infinistore.bench.trace.replay import (
    LRU,
    OPTIMUM,
    Point,
    hits_of,
    replay,
    replay_optimum,
    replay_policy,
    replay_store,
)
from infinistore.bench.trace.report import as_svg, gap_closed, rows, target_line, targets
from infinistore.cli.bench import command
from infinistore.errors import ConfigError


def conversations(seed: int, prompts: int = 400) -> Trace:
    """Chains of their own behind one first block, taken up again at random."""
    random_ = random.Random(seed)
    chains: list[list[int]] = []
    found = []
    last = 0
    for _ in range(prompts):
        if chains and random_.random() < 0.6:
            chain = random_.choice(chains[-30:])
        else:
            chain = [0]
            chains.append(chain)
        chain.extend(range(last + 1, last + 1 + random_.randint(1, 6)))
        last = chain[-1]
        found.append(list(chain))
    return Trace(f"seed {seed}", found)


def uses(policy: str, capacity: int, blocks: str) -> str:
    """What a policy holds after it was told of these one-letter blocks."""
    made = (Lru if policy == LRU else PUBLISHED[policy])(capacity)
    for block in blocks:
        made.use(ord(block))
    return "".join(block for block in sorted(set(blocks)) if ord(block) in made)


@pytest.mark.parametrize(
    ("policy", "capacity", "blocks", "held"),
    [
        (LRU, 2, "abac", "ac"),
        ("SIEVE", 3, "abcad", "acd"),  # a was used, so that the hand takes b
        ("S3-FIFO", 3, "aabcdaaad", "acd"),
        ("2Q", 4, "abcdea", "acde"),  # a was a ghost: it is in the main queue now
        ("ARC", 2, "aabc", "ac"),  # used once leaves before used twice
        ("LFU-DA", 2, "aaabc", "ac"),
    ],
)
def test_a_published_policy_holds_what_its_paper_says(
    policy: str, capacity: int, blocks: str, held: str
) -> None:
    assert uses(policy, capacity, blocks) == held


@pytest.mark.parametrize("policy", [LRU, *PUBLISHED])
def test_no_policy_holds_more_than_its_capacity(policy: str) -> None:
    made = (Lru if policy == LRU else PUBLISHED[policy])(20)
    seen: set[int] = set()
    for prompt in conversations(3).prompts:
        for block in prompt:
            made.use(block)
            seen.add(block)
            assert block in made
        assert sum(block in made for block in seen) <= 20


def test_hits_are_the_blocks_before_the_first_missing_one() -> None:
    trace = Trace("t", [[1, 2, 3], [9], [1, 2, 3]])
    assert replay_policy(trace, Lru(3)) == 0  # 1 is gone: 2 and 3 are of no use
    assert replay_policy(trace, Lru(4)) == 3


def test_the_optimum_keeps_the_most_that_fits() -> None:
    trace = Trace("t", [[1], [2], [3], [1], [2], [4], [1], [3]])
    assert replay_optimum(trace, 1) == 2
    assert replay_optimum(trace, 2) == 3
    assert replay_optimum(trace, 3) == 4


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_beats_the_optimum_and_all_hit_with_room_for_everything(seed: int) -> None:
    trace = conversations(seed)
    for policy in [*_native.eviction_policies(), LRU, *PUBLISHED]:
        for fraction in (0.05, 0.2):
            size = trace.capacity(fraction)
            assert hits_of(trace, size, policy) <= replay_optimum(trace, size), policy
        everything = hits_of(trace, trace.distinct_count, policy)
        assert everything == trace.block_count - trace.distinct_count, policy


@pytest.mark.parametrize("shard_count", [1, 32])
def test_the_stores_lru_is_lru(shard_count: int) -> None:
    # But for prompts that do not fit: it pins what it hits while it puts.
    trace = conversations(5)
    size = trace.capacity(0.3)
    ours, model = replay_store(trace, size, "lru", shard_count), replay_policy(trace, Lru(size))
    assert ours == pytest.approx(model, rel=0.02)


def test_a_trace_is_read_plain_or_gzipped_and_refused_with_a_reason(tmp_path: Path) -> None:
    line = json.dumps({"timestamp": 0, "hash_ids": [0, 1]}) + "\n"
    (tmp_path / "a.jsonl").write_text(line)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(line.encode() * 2))
    assert read_trace(tmp_path / "a.jsonl") == Trace("a", [[0, 1]])
    assert read_trace(tmp_path / "b.jsonl.gz") == Trace("b", [[0, 1], [0, 1]])
    (tmp_path / "c.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"c\.jsonl: not a trace"):
        read_trace(tmp_path / "c.jsonl")


def points_of(ours: float, lru: float, best: float, arc: float = 0.0) -> list[Point]:
    found = {"reuse": ours, LRU: lru, "ARC": arc, OPTIMUM: best}
    return [Point("t", 0.1, name, name == "reuse", rate, 1.0) for name, rate in found.items()]


def test_a_target_is_short_behind_a_published_policy_or_below_lru() -> None:
    points = points_of(0.4, 0.3, 0.6, arc=0.35)
    assert gap_closed(points, "reuse") == pytest.approx(1 / 3)
    found = targets(points, [])
    assert [t.is_short for t in found] == [False, False]
    assert "beside ARC" in found[0].name
    assert "33% of the gap" in found[0].name
    tie = targets(points_of(0.4, 0.3, 0.6, arc=0.4), [])
    assert [t.is_short for t in tie] == [True, False]
    assert [t.is_short for t in targets(points_of(0.298, 0.3, 0.6), [])] == [True, False]
    short = targets(points_of(0.29, 0.3, 0.6), [])
    assert [t.is_short for t in short] == [True, True]
    assert target_line(short[1]).endswith("target 1.000: short")


def test_the_table_has_a_row_a_policy_and_the_picture_a_line() -> None:
    points = list(replay([conversations(1, prompts=60)], (0.1, 0.3)))
    assert len(rows(points)) == len({point.policy for point in points})
    assert as_svg(points).count("<polyline") == len(rows(points))


@pytest.mark.parametrize("mix", MIXES)
def test_a_small_pool_under_churn_is_usable_to_a_large_part(mix: str) -> None:
    found = churn(mix, pool_bytes=128 << 20, puts=3000)
    assert found.refused == 0
    assert 0.9 < found.usable < 1


def test_the_command_says_what_it_found(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    prompts = conversations(1, prompts=60).prompts
    trace.write_text("".join(json.dumps({"hash_ids": p}) + "\n" for p in prompts))
    record, picture = tmp_path / "r.json", tmp_path / "p.svg"
    arguments = ["trace", "--trace", str(trace), "--json", str(record), "--plot", str(picture)]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    assert "S3-FIFO" in result.output
    assert {p["policy"] for p in json.loads(record.read_text())["points"]} >= {"reuse", "lru"}
    assert picture.read_text().startswith("<svg")
    refused = CliRunner().invoke(command, [*arguments[:3], "--policy", "crystal-ball"])
    assert refused.exit_code == 2
    assert "crystal-ball" in refused.output
