"""When `make bench-vllm` says that ours is behind."""

from __future__ import annotations

import dataclasses

import pytest
from peer_figures import (
    ALL,
    COLD_NOISE_MAX,
    COLD_NOISE_MIN,
    OURS,
    PEER,
    PLAIN,
    SHM,
    TCP,
    Sample,
    cold_noise,
    lines,
    markdown,
    promises,
)


def sample(cold_ms: float, warm_ms: float | None, size: str = "long", prompt: str = "p") -> Sample:
    return Sample(prompt, size, 70, cold_ms, warm_ms, 64, 64)


@pytest.fixture
def samples() -> dict[str, list[Sample]]:
    return {
        PLAIN: [dataclasses.replace(sample(100, None), warm_hits=0, warm_expected=0)] * 3,
        SHM: [sample(104, 10)] * 3,
        TCP: [sample(105, 19)] * 3,
        PEER: [sample(105, 20)] * 3,
    }


def short(samples: dict[str, list[Sample]]) -> list[str]:
    return [f"{p.name}: {p.figure}" for p in promises(samples) if not p.ok]


def test_not_behind_in_anything_is_no_shortfall(samples):
    assert short(samples) == []
    assert len(promises(samples)) == 7


def test_a_server_that_was_not_measured_is_short(samples):
    for name in ALL:
        assert short({**samples, name: []}) == [f"bench-vllm: {name}: not measured"]
    del samples[PEER]
    assert short(samples) == [f"bench-vllm: {PEER}: not measured"]


@pytest.mark.parametrize("name", OURS)
def test_a_slower_load_is_short(samples, name):
    samples[name] = [sample(104, 21)] * 3
    assert short(samples) == [f"{name}: warm TTFT, long prompts: 21 ms (+1)"]


@pytest.mark.parametrize("name", OURS)
def test_each_length_of_prompt_counts(samples, name):
    for own in samples.values():
        own.extend([dataclasses.replace(s, size="medium") for s in own])
    samples[name] = [dataclasses.replace(s, warm_ms=5.0) for s in samples[name]]
    samples[name][3:] = [dataclasses.replace(s, warm_ms=25.0) for s in samples[name][3:]]
    assert short(samples) == [f"{name}: warm TTFT, medium prompts: 25 ms (+5)"]


@pytest.mark.parametrize("name", OURS)
def test_a_cold_overhead_beyond_the_noise_is_short(samples, name):
    samples[name] = [sample(106, 10)] * 3
    assert short(samples) == []
    samples[name] = [sample(107, 10)] * 3
    assert short(samples) == [f"{name}: cold overhead over plain vLLM: +7.0% (+2.0%)"]


def test_a_busy_machine_widens_what_counts_as_noise_up_to_a_bound():
    assert cold_noise([0.0] * 20) == COLD_NOISE_MIN
    assert COLD_NOISE_MIN < cold_noise([i / 300 for i in range(20)]) < COLD_NOISE_MAX
    assert cold_noise([i / 10 for i in range(20)]) == COLD_NOISE_MAX


@pytest.mark.parametrize("name", [*OURS, PEER])
def test_a_missing_hit_is_short(samples, name):
    samples[name] = [dataclasses.replace(samples[name][0], warm_hits=32), *samples[name][1:]]
    assert short(samples) == [f"{name}: tokens loaded when warm: 160"]


def test_the_table_has_overheads_prompt_by_prompt(samples):
    samples[PLAIN] = [sample(100, None), sample(200, None), sample(400, None)]
    samples[SHM] = [sample(101, 1), sample(207, 2), sample(403, 3)]
    table = lines(samples)
    assert [line.server for line in table] == list(ALL)
    assert (table[1].cold_ms, table[1].cold_overhead_ms, table[1].warm_ms) == (207, 3, 2)
    text = markdown(table, "about it")
    assert "| long, 70 tokens | InfiniStore, shm | 207 ms | +3 ms | 2 ms |" in text
    assert "| long, 70 tokens | plain vLLM | 200 ms | - | - |" in text
