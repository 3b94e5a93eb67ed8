"""Weights changed in a live engine: no block of the old ones is loaded, nobody else loses any."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from test_vllm_pd import tokens, whole_blocks
from vllm_engine import EngineProcess

from figures import RecordFigure
from server_process import ServerProcess

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1100),
    pytest.mark.skipif(
        os.environ.get("INFINISTORE_TEST_CLIENT") != "vllm",
        reason="four engines: run by make test-clients",
    ),
]

OUTPUT = 8
FACTOR = 1.7  # of the norms before attention

TOLD = {"worker_extension_cls": "vllm_engine.ChangingWorker"}


def keys_in(server: ServerProcess, namespace: str) -> int:
    return int(server.admin(f"/keys/count?namespace={quote(namespace, safe='')}")["count"])


def test_weights_change_between_two_runs_and_under_requests(
    server: ServerProcess,
    model: Callable[[str], Path],
    prompts: list[list[int]],
    record_figure: RecordFigure,
) -> None:
    path = model("tiny-llama")
    some = [prompt for prompt in prompts[3:8] if len(prompt) > 32]
    fresh = [prompt[::-1] for prompt in some]  # nobody has seen these before
    with EngineProcess(path, **TOLD) as plain, EngineProcess(path, server.url, **TOLD) as engine:
        old = tokens(plain.generate(some, OUTPUT))
        assert tokens(engine.generate(some, OUTPUT)) == old
        first = engine.call("namespace")
        kept = keys_in(server, first)
        assert kept > 0
        # Named by the training framework, while nothing runs.
        plain.call("change_weights", factor=FACTOR)
        new = tokens(plain.generate(some, OUTPUT))
        assert old != new, "the change of weights changes no token: the test cannot fail"
        second = engine.call("change_weights", factor=FACTOR, epoch="step-1")
        assert second == f"{first}/epoch-step-1"
        assert tokens(engine.generate(some, OUTPUT)) == new
        hits = engine.counters()["tokens_hit"]
        assert engine.call("reset")  # the engine's own cache only
        again = engine.generate(some, OUTPUT)
        assert tokens(again) == new
        assert [output["cached"] for output in again] == [whole_blocks(p) for p in some]
        # While requests run, with the engine's reset as the only signal.
        across = engine.call(
            "generate_across_change", prompts=fresh, max_tokens=40, steps=20, factor=FACTOR
        )
        third = engine.call("namespace")
        begun = tokens(plain.generate(fresh, 40))
        plain.call("change_weights", factor=FACTOR)
        for prompt, was, said in zip(fresh, begun, across, strict=True):
            before = said["before"]
            assert 0 < before < 40, "the change came before or after the request"
            # So far the weights of before; from there on those of now, over all of it.
            assert said["tokens"][:before] == was[:before]
            rest = plain.generate([prompt + was[:before]], 40 - before)
            assert said["tokens"][before:] == tokens(rest)[0]
        assert engine.call("reset")
        assert tokens(engine.generate(fresh, OUTPUT)) == tokens(plain.generate(fresh, OUTPUT))
        counters = engine.counters()
    record_figure(
        "weights changed in a live engine, the same prompts again",
        f"{hits} tokens of the old weights loaded, outputs equal plain vLLM's",
        "0",
        ok=hits == 0,
    )
    assert counters["weights_epochs"] == 3  # a reset's, its name, and the last reset's
    assert len({first, second, third}) == 3
    assert keys_in(server, first) == kept

    with EngineProcess(path, server.url) as unchanged:
        outputs = unchanged.generate(some, OUTPUT)
        assert tokens(outputs) == old
        assert [output["cached"] for output in outputs] == [whole_blocks(p) for p in some]
    # Another engine that has the same weights under the same name shares its blocks.
    extra = {"weights_epoch": "step-1"}
    with EngineProcess(path, server.url, extra=extra, **TOLD) as follower:
        follower.call("change_weights", factor=FACTOR, epoch="step-1")
        outputs = follower.generate(some, OUTPUT)
        assert tokens(outputs) == new
        assert [output["cached"] for output in outputs] == [whole_blocks(p) for p in some]
    # The old ones are one call to reclaim; else they age out like all that nobody reads.
    purged = server.admin(f"/purge?namespace={quote(first, safe='')}", "POST")
    assert purged["num"] == kept
    assert keys_in(server, second) > 0
