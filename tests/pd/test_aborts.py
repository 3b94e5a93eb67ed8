"""Requests that are aborted while their blocks are looked up, loaded, and saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pair import OUTPUT, Reference
from vllm_engine import EngineProcess

from figures import RecordFigure
from server_process import ServerProcess
from waiting import until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

# The step before which each of the prompts is aborted: before it is looked up, while its blocks
# come, and while its output is saved.
ABORTS = (0, 1, 2, 3, 5, 40)


@pytest.mark.parametrize("load_mode", ["async", "layerwise"])
def test_an_aborted_request_leaves_nothing_behind_and_harms_no_other(
    server: ServerProcess,
    model: Callable[[str], Path],
    reference: Reference,
    prompts: list[list[int]],
    record_figure: RecordFigure,
    load_mode: str,
) -> None:
    path, expected = model("tiny-llama"), reference("tiny-llama")
    extra = {"load_mode": load_mode, "tenant": load_mode}
    with EngineProcess(path, server.url, extra=extra) as engine:
        engine.generate(prompts, 1)
    with EngineProcess(path, server.url, extra=extra) as engine:
        cut = wrong = 0
        for turn in range(len(prompts)):
            aborts: list[int | None] = [None, *ABORTS]
            aborts = aborts[turn:] + aborts[:turn]
            said = engine.call(
                "generate_with_aborts", prompts=prompts, max_tokens=OUTPUT, aborts=aborts
            )
            assert said[aborts.index(None)] == expected[aborts.index(None)]
            cut += sum(len(tokens) < OUTPUT for tokens in said)
            wrong += sum(
                tokens != whole[: len(tokens)] for tokens, whole in zip(said, expected, strict=True)
            )
            assert engine.call("reset")
        until(lambda: server.stats()["pins"] == 0, message="blocks stay pinned")
        after = [output["tokens"] for output in engine.generate(prompts, OUTPUT)]
        counters = engine.counters()
    record_figure(
        f"requests aborted on their way, {load_mode}",
        f"{cut} cut short, {wrong} said other tokens, {server.stats()['pins']} blocks pinned after",
        "outputs equal plain vLLM's, nothing pinned",
        ok=cut > len(prompts) and wrong == 0 and after == expected,
    )
    assert counters["tokens_hit"] > 0
    assert counters["blocks_load_corrupt"] == 0
