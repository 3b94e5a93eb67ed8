"""Prefill and decode by two vLLMs: token for token what one plain vLLM says, and really loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm_engine import EngineProcess

import infinistore
from figures import RecordFigure
from server_process import ServerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

BLOCK = 32
OUTPUT = 40


def whole_blocks(prompt: list[int]) -> int:
    """The tokens of the whole blocks before the last token: what must not be computed again."""
    return (len(prompt) - 1) // BLOCK * BLOCK


def tokens(outputs: list[Any]) -> list[list[int]]:
    return [output["tokens"] for output in outputs]


def flip_block(server: ServerProcess, block: dict[str, Any]) -> None:
    """Another writer replaces a value by one with all its bytes changed."""
    import numpy as np

    key, size = block["key"].encode(), block["bytes"]
    client = infinistore.connect(server.url, namespace=block["namespace"], transport="tcp")
    try:
        content = np.zeros(size, dtype=np.uint8)
        client.read_cache(content, [(key, 0)], size)
        client.sync()
        assert content.any()
        content ^= 0x80
        client.write_cache(content, [(key, 0)], size, on_exists="replace")
        client.sync()
    finally:
        client.close()


@pytest.mark.parametrize(
    ("name", "prefill", "decode"),
    [
        # Chunked prefill: a prompt's blocks are completed over several steps.
        (
            "tiny-llama",
            {"extra": {"transport": "shm"}, "max_num_batched_tokens": 96},
            {"extra": {"transport": "tcp"}},
        ),
        (
            "tiny-opt",
            {"extra": {"transport": "tcp"}},
            {"extra": {"transport": "shm", "load_mode": "layerwise"}},
        ),
    ],
)
def test_decode_says_what_plain_vllm_says_from_blocks_that_prefill_saved(
    server: ServerProcess,
    model: Callable[[str], Path],
    plain: Callable[[str], list[list[int]]],
    prompts: list[list[int]],
    name: str,
    prefill: dict[str, Any],
    decode: dict[str, Any],
    record_figure: RecordFigure,
) -> None:
    path = model(name)
    expected = [output[:OUTPUT] for output in plain(name)]
    with EngineProcess(path, server.url, **prefill) as engine:
        assert set(engine.call("links")["transports"]) == {prefill["extra"]["transport"]}
        params = [output["params"] for output in engine.generate(prompts, 1)]
        assert engine.counters()["blocks_save_failed"] == 0
    announced = [p["infinistore"]["blocks"] if p else 0 for p in params]
    assert announced == [len(prompt) // BLOCK for prompt in prompts]
    with EngineProcess(path, server.url, **decode) as engine:
        assert set(engine.call("links")["transports"]) == {decode["extra"]["transport"]}
        outputs = engine.generate(prompts, OUTPUT, params=params)
        cached = [output["cached"] for output in outputs]
        same = sum(a == b for a, b in zip(tokens(outputs), expected, strict=True))
        counters = engine.counters()
        record_figure(
            f"{name}, prefill over {prefill['extra']['transport']}, "
            f"decode over {decode['extra']['transport']}",
            f"{same} of {len(prompts)} outputs equal plain vLLM's; {sum(cached)} prompt tokens "
            f"not computed, {counters['tokens_hit']} of them from the store",
            f"all equal; {sum(map(whole_blocks, prompts))} in whole blocks before the last token",
            ok=same == len(prompts) and cached == [whole_blocks(p) for p in prompts],
        )
        assert counters["blocks_load_failed"] == counters["lookups_failed"] == 0
        local = sum(whole_blocks(p) for p in prompts) - counters["tokens_hit"]
        assert 0 <= local <= 128  # at most what two prompts share was found in the engine itself
        # The twin: with one loaded block's bytes changed the output must change.
        longest = max(range(len(prompts)), key=lambda n: len(prompts[n]))
        flip_block(server, engine.call("block", prompt=prompts[longest], index=3))
        assert engine.call("reset")
        outputs = engine.generate([prompts[longest]], OUTPUT)
        assert outputs[0]["cached"] == whole_blocks(prompts[longest])
        record_figure(
            f"{name}: twin with one loaded block's bytes flipped",
            "the output differs" if outputs[0]["tokens"] != expected[longest] else "equal",
            "differs",
            ok=outputs[0]["tokens"] != expected[longest],
        )
