"""Generated workloads: the same for a seed, and each what its name promises."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from infinistore import _native
from infinistore.bench.trace import generated
from infinistore.bench.trace.generated import SEED, WORKLOADS, generate
from infinistore.bench.trace.prompts import Trace
from infinistore.bench.trace.replay import replay_optimum, replay_store
from infinistore.cli.bench import command


def shared_blocks(one: list[int], other: list[int]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def followed(trace: Trace) -> float:
    """The part of the prompts whose whole question is the beginning of a later one."""
    begun = {prompt[-1] for prompt in trace.prompts}
    return sum(len(begun.intersection(p[:-1])) for p in trace.prompts) / len(trace.prompts)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_gives_the_same_prompts_and_another_gives_others(name: str) -> None:
    assert generate(name, 7) == generate(name, 7)
    assert generate(name, 7) != generate(name, 8)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_block_stands_behind_the_same_blocks_in_every_prompt(name: str) -> None:
    before: dict[int, int] = {}
    for prompt in generate(name).prompts:
        assert prompt
        for parent, block in pairwise([-1, *prompt]):
            assert before.setdefault(block, parent) == parent


def test_chats_and_agents_take_up_whole_prompts_and_documents_only_the_document() -> None:
    assert followed(generate("chat")) > 1
    assert followed(generate("agents")) > followed(generate("chat")) * 2
    documents = generate("documents").prompts
    assert followed(Trace("documents", documents)) == 0
    again = [p for n, p in enumerate(documents) if any(p[0] == q[0] for q in documents[:n])]
    assert len(again) > len(documents) / 2
    first = next(p for p in documents if p[0] == again[0][0])
    assert shared_blocks(first, again[0]) >= len(again[0]) / 2


def test_some_system_prompts_are_much_more_popular_than_others() -> None:
    starts = [prompt[0] for prompt in generate("chat and single").prompts]
    counts = sorted((starts.count(start) for start in set(starts)), reverse=True)
    assert len(counts) == WORKLOADS["chat and single"].systems
    assert counts[0] > 10 * counts[-1]


def test_the_stores_numbers_can_be_replaced_by_name_only() -> None:
    trace = Trace("t", generate("chat").prompts[:600])
    size = trace.capacity(0.1)
    own = replay_store(trace, size, "reuse")
    assert replay_store(trace, size, "reuse", reuse=_native.reuse_tuning()) == own
    assert replay_store(trace, size, "reuse", reuse={"young_part": 1, "prior_hits": 0.4}) != own
    for wrong in ({"crystal": 1.0}, {"young_part": 0.0}, {"prior_hits": -1.0}):
        with pytest.raises(ValueError, match="reuse"):
            replay_store(trace, size, "reuse", reuse=wrong)


def test_the_built_in_numbers_are_those_of_the_decision_page() -> None:
    page = (Path(__file__).parents[2] / "docs/decisions/0003-eviction.md").read_text()
    stated = {name: float(value) for name, value in re.findall(r"(\w+) = (\d[\d.]*\d|\d)", page)}
    assert stated == _native.reuse_tuning()


def test_the_built_in_numbers_beat_lru_on_a_seed_that_they_were_not_derived_on() -> None:
    trace = generate("chat and single", SEED + 1)
    size = trace.capacity(0.1)
    lru, optimum = replay_store(trace, size, "lru"), replay_optimum(trace, size)
    assert replay_store(trace, size, "reuse") > lru + (optimum - lru) / 3


def test_the_command_replays_generated_workloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated, "DURATION_S", 600.0)
    record = tmp_path / "r.json"
    arguments = ["trace", "--generated", "--policy", "lru", "--json", str(record)]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    points = json.loads(record.read_text())["points"]
    assert {point["trace"] for point in points} == set(WORKLOADS)
    neither = CliRunner().invoke(command, ["trace"])
    assert neither.exit_code == 2
    assert "--generated" in neither.output
