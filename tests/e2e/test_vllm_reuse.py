"""Reuse over restarts, and what must keep blocks apart: weights, salts, a pool that is gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from test_vllm_pd import tokens, whole_blocks
from vllm_engine import EngineProcess

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
    prompts: list[list[int]],
    tmp_path: Path,
) -> None:
    path = tmp_path / "model"
    shutil.copytree(model("tiny-llama"), path)
    prompts = prompts[3:]
    with EngineProcess(path, server.url) as engine:
        first = tokens(engine.generate(prompts, OUTPUT))
    turns = [prompt + output for prompt, output in zip(prompts, first, strict=True)]
    with EngineProcess(path) as plain:
        assert tokens(plain.generate(prompts, OUTPUT)) == first
        expected = tokens(plain.generate(turns, OUTPUT))
    with EngineProcess(path, server.url, extra={"load_mode": "layerwise"}) as engine:
        outputs = engine.generate(turns, OUTPUT)
        assert tokens(outputs) == expected
        # The output's last token was never computed, so its block may be missing by that one.
        assert [o["cached"] for o in outputs] == [whole_blocks(turn) for turn in turns]
        # A salt keeps apart what is otherwise the same, and finds its own again.
        salted = engine.generate(prompts, 4, salt="somebody else's")
        assert [o["cached"] for o in salted] == [0] * len(prompts)
        assert tokens(salted) == [output[:4] for output in first]
        assert engine.call("reset")
        again = engine.generate(prompts, 4, salt="somebody else's")
        assert [o["cached"] for o in again] == [whole_blocks(prompt) for prompt in prompts]
    shutil.rmtree(path)
    change_weights(model("tiny-llama"), path)
    with EngineProcess(path, server.url) as engine:
        assert [o["cached"] for o in engine.generate(prompts, 1)] == [0] * len(prompts)


def test_preempted_requests_say_what_they_would_have_said(
    server: ServerProcess, model: Callable[[str], Path], prompts: list[list[int]]
) -> None:
    path = model("tiny-opt")
    prompts = [prompt for prompt in prompts if len(prompt) > 190]
    length = 250
    with EngineProcess(path) as plain:
        expected = tokens(plain.generate(prompts, length))
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
        assert tokens(outputs) == expected
        assert [o["cached"] for o in outputs] == [whole_blocks(prompt) for prompt in prompts]
