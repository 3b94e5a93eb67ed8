"""Reuse over restarts, and what must keep blocks apart: weights, salts, a pool that is gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from test_vllm_pd import tokens, whole_blocks
from vllm_engine import EngineProcess

from figures import RecordFigure
from server_process import ServerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

OUTPUT = 70  # more than two blocks: what decode fills is saved, too


def change_weights(source: Path, target: Path) -> None:
    """The same model but for one byte of its last shard."""
    shutil.copytree(source, target)
    shard = target / "model.safetensors"
    content = bytearray(shard.read_bytes())
    content[-3] ^= 0x01
    shard.write_bytes(content)


def test_a_restarted_engine_goes_on_where_the_last_one_ended(
    server: ServerProcess,
    model: Callable[[str], Path],
    plain: Callable[[str], list[list[int]]],
    prompts: list[list[int]],
    tmp_path: Path,
    record_figure: RecordFigure,
) -> None:
    path = tmp_path / "model"
    shutil.copytree(model("tiny-llama"), path)
    said = plain("tiny-llama")[3:]
    prompts = prompts[3:]
    with EngineProcess(path, server.url) as engine:
        first = tokens(engine.generate(prompts, OUTPUT))
    assert first == [output[:OUTPUT] for output in said]
    turns = [prompt + output for prompt, output in zip(prompts, first, strict=True)]
    expected = [output[OUTPUT : 2 * OUTPUT] for output in said]
    with EngineProcess(path, server.url, extra={"load_mode": "layerwise"}) as engine:
        outputs = engine.generate(turns, OUTPUT)
        assert tokens(outputs) == expected
        # The output's last token was never computed, so its block may be missing by that one.
        cached = [output["cached"] for output in outputs]
        record_figure(
            "restarted engine, each conversation's next turn",
            f"{sum(cached)} of {sum(map(len, turns))} tokens found in the store, outputs equal",
            f"{sum(map(whole_blocks, turns))}: the whole blocks before the last token",
            ok=cached == [whole_blocks(turn) for turn in turns],
        )
        # A salt keeps apart what is otherwise the same, and finds its own again.
        before = engine.counters()["tokens_hit"]
        salted = engine.generate(prompts, 4, salt="somebody else's")
        assert engine.counters()["tokens_hit"] == before
        assert tokens(salted) == [output[:4] for output in first]
        assert engine.call("reset")
        again = engine.generate(prompts, 4, salt="somebody else's")
        assert [o["cached"] for o in again] == [whole_blocks(prompt) for prompt in prompts]
    shutil.rmtree(path)
    change_weights(model("tiny-llama"), path)
    with EngineProcess(path, server.url) as engine:
        engine.generate(prompts, 1)
        found = engine.counters()["tokens_hit"]
        record_figure(
            "one byte of the weights changed, same name", f"{found} tokens hit", "0", ok=found == 0
        )


def test_preempted_requests_say_what_they_would_have_said(
    server: ServerProcess,
    model: Callable[[str], Path],
    plain: Callable[[str], list[list[int]]],
    prompts: list[list[int]],
    record_figure: RecordFigure,
) -> None:
    path = model("tiny-opt")
    long = [index for index, prompt in enumerate(prompts) if len(prompt) > 190]
    expected = [plain("tiny-opt")[index] for index in long]
    prompts = [prompts[index] for index in long]
    length = len(expected[0])
    few_blocks = {"num_gpu_blocks_override": 37, "max_model_len": 1024}
    with EngineProcess(path, server.url, extra={"tenant": "p"}, **few_blocks) as engine:
        assert tokens(engine.generate(prompts, length)) == expected
        assert engine.call("preemptions") > 0
        counters = engine.counters()
        assert counters["tokens_hit"] > 0  # what was preempted came back from the store
        assert counters["blocks_save_failed"] == counters["blocks_load_failed"] == 0
    # Nothing wrong was saved under a good name.
    with EngineProcess(path, server.url, extra={"tenant": "p"}) as engine:
        outputs = engine.generate(prompts, length)
        cached = [output["cached"] for output in outputs]
        record_figure(
            "after preemptions, another engine",
            f"{sum(cached)} tokens from the store, {len(prompts)} outputs equal plain vLLM's",
            "what was saved under preemption is right",
            ok=tokens(outputs) == expected and cached == [whole_blocks(p) for p in prompts],
        )
