"""Prefill and decode apart say what plain vLLM says, over models and types; see `pair`.

Everything is computed by vLLM; nothing here stands in for it. Under latent attention only the bytes
are compared: vLLM 0.32's kernels for CPUs say other tokens when the same prompts come one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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
from vllm_engine import EngineProcess

from figures import RecordFigure
from server_process import ServerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Case:
    """A model, how it is started, and how the two engines reach the store."""

    model: str
    engine: dict[str, Any] = field(default_factory=dict)
    prefill: dict[str, Any] = field(default_factory=dict)
    decode: dict[str, Any] = field(default_factory=dict)
    block: int = 32
    says_one_thing: bool = True  # plain vLLM: however prompts are batched
    cpu_flag: str = ""  # without which vLLM's kernels for CPUs cannot do it

    def has_kernels(self) -> bool:
        """Whether vLLM can run it here."""
        return self.cpu_flag in Path("/proc/cpuinfo").read_text().split() or not self.cpu_flag


CASES = {
    "opt": Case("tiny-opt", prefill={"transport": "tcp"}, decode={"load_mode": "layerwise"}),
    "llama": Case("tiny-llama", decode={"transport": "tcp"}),
    "gqa": Case("tiny-qwen3", {"max_num_batched_tokens": 96}),
    "bfloat16": Case("tiny-llama", {"dtype": "bfloat16"}),
    "float16": Case("tiny-llama", {"dtype": "float16"}),
    "fp8": Case("tiny-llama", {"dtype": "bfloat16", "kv_cache_dtype": "fp8"}, cpu_flag="avx512f"),
    "mla": Case("tiny-deepseek", {"block_size": 16}, block=16, says_one_thing=False),
    "window": Case("tiny-mistral", {"max_num_batched_tokens": 96}),
    "hybrid": Case("tiny-gemma3", {"max_num_batched_tokens": 96}, decode={"transport": "tcp"}),
    "windows-as-full": Case("tiny-gemma3", {"disable_hybrid_kv_cache_manager": True}),
}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.has_kernels()])
def test_decode_loads_what_prefill_saved_and_says_what_plain_vllm_says(
    server: ServerProcess,
    model: Callable[[str], Path],
    reference: Reference,
    prompts: list[list[int]],
    name: str,
    record_figure: RecordFigure,
) -> None:
    case = CASES[name]
    path = model(case.model)
    with watched(path, server.url, extra=case.prefill, **case.engine) as engine:
        prefill = run(engine, prompts, 1)
    assert not prefill.loaded
    with watched(path, server.url, extra=case.decode, **case.engine) as engine:
        decode = run(engine, prompts, OUTPUT)
    wanted = wanted_places(prompts, case.block, prefill)
    check_loaded_is_saved(prefill, decode, wanted)
    assert decode.cached == [usable_blocks(p, case.block) * case.block for p in prompts]
    if not case.says_one_thing:
        check_plain_contradicts_itself(path, case, prompts)
        return
    expected = reference(case.model, **case.engine)
    same = sum(a == b for a, b in zip(decode.tokens, expected, strict=True))
    record_figure(
        f"{name}: {case.model} {case.engine.get('dtype', 'float32')}",
        f"{same} of {len(prompts)} outputs equal; {decode.count('bytes_loaded')} bytes loaded, "
        f"each equal to what was saved",
        "all equal",
        ok=same == len(prompts),
    )


def check_plain_contradicts_itself(path: Path, case: Case, prompts: list[list[int]]) -> None:
    """Once it does no more, the tokens of this model can be compared, too."""
    last = OUTPUT - 4
    with EngineProcess(path, **case.engine) as engine:
        together = [output["tokens"] for output in engine.generate(prompts, OUTPUT)]
        alone = [engine.generate([prompt], OUTPUT)[0]["tokens"] for prompt in prompts]
        # One at a time, too: a prompt and what was said to it, as one prompt.
        begun = [prompt + said[:last] for prompt, said in zip(prompts, alone, strict=True)]
        again = [engine.generate([prompt], 1)[0]["tokens"] for prompt in begun]
    assert again != [said[last : last + 1] for said in alone], f"{case.model}: compare its tokens"
    assert together != alone, f"{case.model}: compare its tokens as those of the others"
