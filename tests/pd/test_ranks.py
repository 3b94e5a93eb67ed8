"""Prefill and decode of equal and of unlike tensor-parallel sizes, two workers on two cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pair import (
    OUTPUT,
    Reference,
    check_loaded_is_saved,
    run,
    usable_blocks,
    wanted_places,
    watched,
)

from figures import RecordFigure
from server_process import ServerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

RANKS: dict[int, dict[str, Any]] = {
    1: {},
    2: {
        "tensor_parallel_size": 2,
        "environment": {"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
        "disable_custom_all_reduce": True,
    },
}


@dataclass(frozen=True)
class Case:
    """A model, and the ranks of the two engines."""

    model: str
    prefill: int
    decode: int
    block: int = 32


CASES = {
    "1-to-2": Case("tiny-llama", 1, 2),
    "2-to-1": Case("tiny-llama", 2, 1),
    "2-to-2": Case("tiny-qwen3", 2, 2),
    "2-to-1-windows": Case("tiny-gemma3", 2, 1),
    "2-to-1-latent": Case("tiny-deepseek", 2, 1, block=16),
}


@pytest.mark.parametrize("name", CASES)
def test_each_rank_loads_its_heads_whoever_saved_them(
    server: ServerProcess,
    model: Callable[[str], Path],
    reference: Reference,
    prompts: list[list[int]],
    name: str,
    record_figure: RecordFigure,
) -> None:
    case = CASES[name]
    path = model(case.model)
    extra: dict[str, Any] = {"tenant": name}
    if case.prefill != case.decode:
        extra["split_tp"] = max(case.prefill, case.decode)
    size = {"block_size": case.block}
    with watched(path, server.url, extra=extra, **size, **RANKS[case.prefill]) as engine:
        prefill = run(engine, prompts, 1)
    with watched(path, server.url, extra=extra, **size, **RANKS[case.decode]) as engine:
        decode = run(engine, prompts, OUTPUT)
    assert (len(prefill.workers), len(decode.workers)) == (case.prefill, case.decode)
    check_loaded_is_saved(prefill, decode, wanted_places(prompts, case.block, prefill))
    assert decode.cached == [usable_blocks(p, case.block) * case.block for p in prompts]
    if name == "2-to-1-latent":  # equal on all ranks: one saves. Its tokens: see test_models
        assert [worker["blocks_saved"] > 0 for worker in prefill.workers] == [True, False]
        return
    expected = reference(case.model, **size, **RANKS[case.decode])
    same = sum(a == b for a, b in zip(decode.tokens, expected, strict=True))
    record_figure(
        f"tensor-parallel {case.prefill} to {case.decode}: {case.model}",
        f"{same} of {len(prompts)} outputs equal; {decode.count('bytes_loaded')} bytes loaded, "
        "each equal to what was saved",
        "all equal to plain vLLM's of decode's size",
        ok=same == len(prompts),
    )
