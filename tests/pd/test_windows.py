"""Models with windows when something goes wrong: a load fails, requests are preempted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pair import OUTPUT, Reference, run, watched
from vllm_engine import EngineProcess

from figures import RecordFigure
from server_process import ServerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


def test_blocks_that_do_not_come_are_computed_in_all_groups(
    server: ServerProcess,
    model: Callable[[str], Path],
    reference: Reference,
    prompts: list[list[int]],
    record_figure: RecordFigure,
) -> None:
    path = model("tiny-gemma3")
    expected = reference("tiny-gemma3", max_num_batched_tokens=96)
    with watched(path, server.url) as engine:
        run(engine, prompts, 1)
        assert engine.call("reset")
        engine.call("rpc", method="break_next_loads")
        seen = run(engine, prompts, OUTPUT)
        failed = seen.count("blocks_load_failed")
        record_figure(
            "a model with windows, a block of each load missing",
            f"{failed} blocks failed, {sum(map(bool, seen.cached))} requests found cached tokens",
            "outputs equal plain vLLM's",
            ok=failed > 0 and seen.tokens == expected,
        )


def test_preempted_requests_say_what_they_would_have_said(
    server: ServerProcess,
    model: Callable[[str], Path],
    prompts: list[list[int]],
    record_figure: RecordFigure,
) -> None:
    path = model("tiny-gemma3")
    long = [prompt[-90 - index :] for index, prompt in enumerate(prompts[3:])]
    output = 300  # they grow beyond what was there when they were let in
    with EngineProcess(path) as engine:
        expected = [said["tokens"] for said in engine.generate(long, output)]
    few = {"num_gpu_blocks_override": 60, "max_model_len": 600}
    with watched(path, server.url, extra={"tenant": "preempted"}, **few) as engine:
        seen = run(engine, long, output)
        preempted = engine.call("preemptions")
        hits = engine.counters()["tokens_hit"]
    record_figure(
        "a model with windows and few blocks",
        f"{preempted} preemptions, {hits} tokens came back from the store",
        "outputs equal plain vLLM's",
        ok=seen.tokens == expected and preempted > 0 and hits > 0,
    )
    differing = [place for place in seen.loaded if seen.loaded[place] != seen.saved[place]]
    assert not differing
    assert seen.count("blocks_save_failed") == seen.count("blocks_load_failed") == 0
