"""What fails around vLLM: the store, the prefill instance, a slow server; never a request."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_vllm_pd import tokens, whole_blocks
from vllm_engine import EngineProcess

from figures import RecordFigure
from server_process import ServerProcess
from waiting import freeze, until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

LAYERS = 4
HELD = 2  # the model is held before this layer: those before it have computed


def staged(server: ServerProcess) -> list[dict[str, Any]]:
    """The values that are not complete."""
    answer = server.admin("/staged")
    return list(answer["staged"])


def pool_adds_up(stats: dict[str, Any]) -> bool:
    parts = ("free_bytes", "reserved_bytes", "quarantined_bytes", "sealed_bytes")
    return sum(stats[part] for part in parts) == stats["capacity_bytes"]


def test_layers_are_in_the_store_while_the_next_ones_compute(
    server: ServerProcess,
    model: Callable[[str], Path],
    prompts: list[list[int]],
    record_figure: RecordFigure,
) -> None:
    path, prompt = model("tiny-llama"), prompts[-1]
    blocks = len(prompt) // 32
    with EngineProcess(path, server.url, extra={"tenant": "layers"}) as engine:
        engine.call("hold", layer=HELD)
        engine.send("generate", prompts=[prompt], max_tokens=1)
        assert engine.answer() == "held"
        # The model stands at the entry of layer 2: layers 0 and 1 are filled meanwhile.
        filled = [[0, engine_bytes * HELD // LAYERS] for engine_bytes in [64 * 1024]] * blocks
        until(
            lambda: [value["filled"] for value in staged(server)] == [[r] for r in filled],
            2.0,
            "layers 0 and 1 did not reach the store while the model was held",
        )
        assert {value["value_bytes"] for value in staged(server)} == {64 * 1024}
        record_figure(
            f"model held at the entry of layer {HELD}",
            f"layers 0 to {HELD - 1} of {LAYERS} are filled in the server, of {blocks} blocks",
            "filled while the next layer waits",
            ok=True,
        )
        engine.send("go")
        assert engine.answer()[0]["tokens"]
        assert not staged(server)

        # Without the hold nothing but wait_for_save waits, even for a server that stands still.
        engine.call("watch")
        freeze(server.pid)
        try:
            engine.send("generate", prompts=[prompts[7]], max_tokens=1)
            assert engine.answer() == "waiting"
            time.sleep(0.4)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert engine.answer()[0]["tokens"]
        took = engine.call("durations")
        assert len(took["save_kv_layer"]) == LAYERS
        hooks_s = max(*took["save_kv_layer"], *took["wait_for_layer_load"])
        waited_s = max(took["wait_for_save"])
        record_figure(
            "a server that stands still for 0.4 s",
            f"costs wait_for_save {1000 * waited_s:.0f} ms, each layer's hook at most "
            f"{1000 * hooks_s:.1f} ms",
            "only wait_for_save waits: hooks < 100 ms",
            ok=hooks_s < 0.1 and waited_s > 0.3,
        )

        # vLLM binds its threads to one CPU; ours run where there is room.
        threads = engine.call("threads")
        ours = {name: cpus for name, cpus in threads.items() if name.startswith("infinistore")}
        assert ours
        everywhere = sorted(os.sched_getaffinity(0))
        record_figure(
            "CPUs of our threads in an engine that pins its own",
            ", ".join(f"{name}: {cpus}" for name, cpus in sorted(ours.items())),
            f"all of {everywhere}",
            ok=all(cpus == everywhere for cpus in ours.values()),
        )


def test_a_prefill_killed_in_its_save_leaves_nothing_and_decode_computes(
    server: ServerProcess,
    model: Callable[[str], Path],
    plain: Callable[[str], list[list[int]]],
    prompts: list[list[int]],
    record_figure: RecordFigure,
) -> None:
    path, prompt = model("tiny-opt"), prompts[7]
    expected = [plain("tiny-opt")[7][:20]]
    with EngineProcess(path, server.url, extra={"tenant": "killed"}) as engine:
        engine.call("hold", layer=HELD)
        engine.send("generate", prompts=[prompt], max_tokens=1)
        assert engine.answer() == "held"
        until(lambda: len(staged(server)) == len(prompt) // 32, 2.0, "nothing was staged")
        stats = server.stats()
        assert stats["reserved_bytes"] > 0
        assert pool_adds_up(stats)
        engine.process.kill()
        killed_at_s = time.monotonic()
        until(
            lambda: server.stats()["reserved_bytes"] == 0,
            1.0,
            "its reservations outlived it by a second",
        )
        gone_s = time.monotonic() - killed_at_s
        held = stats["reserved_bytes"]
        stats = server.stats()
        assert stats["quarantined_bytes"] == 0
        record_figure(
            "kill -9 of the prefill vLLM in its save",
            f"{held >> 10} KiB of reservations gone after {1000 * gone_s:.0f} ms",
            "< 1 s, and the accounting adds up",
            ok=gone_s < 1.0 and pool_adds_up(stats),
        )
    with EngineProcess(path, server.url, extra={"tenant": "killed"}) as engine:
        outputs = engine.generate([prompt], 20)
        assert outputs[0]["cached"] == 0
        record_figure(
            "decode after the prefill's death",
            f"{len(outputs[0]['tokens'])} tokens computed, equal to plain vLLM's",
            "equal",
            ok=tokens(outputs) == expected,
        )


def test_a_store_killed_under_load_costs_the_speed_up_and_nothing_else(
    start_server: Callable[..., ServerProcess],
    model: Callable[[str], Path],
    plain: Callable[[str], list[list[int]]],
    prompts: list[list[int]],
) -> None:
    server = start_server()
    path = model("tiny-llama")
    expected = [output[:60] for output in plain("tiny-llama")]
    with EngineProcess(path, server.url) as engine:
        engine.generate(prompts[:4], 1)
        assert engine.call("reset")
        # Dies when the first layers of a step are on their way: loads and saves at once.
        engine.call("hold", layer=HELD)
        engine.send("generate", prompts=prompts, max_tokens=60)
        assert engine.answer() == "held"
        server.kill()
        engine.send("go")
        assert tokens(engine.answer()) == expected
        assert engine.call("reset")
        began_s = time.monotonic()
        assert tokens(engine.generate(prompts, 60)) == expected
        assert time.monotonic() - began_s < 20
        # Another server on the same port is found without a restart of vLLM.
        port = server.address.rpartition(":")[2]
        start_server(f"--port={port}")
        until(lambda: _is_saving_again(engine, prompts[7]), 30.0, "it never found the new server")


def _is_saving_again(engine: EngineProcess, prompt: list[int]) -> bool:
    before = engine.counters()["blocks_saved"]
    assert engine.call("reset")
    engine.generate([prompt], 1)
    if engine.counters()["blocks_saved"] == before:
        time.sleep(0.5)
        return False
    assert engine.call("reset")
    return bool(engine.generate([prompt], 1)[0]["cached"] == whole_blocks(prompt))


def test_a_policy_that_fails_requests_is_refused_at_the_start(
    model: Callable[[str], Path],
) -> None:
    transfer = {
        "kv_connector": "InfiniStoreConnector",
        "kv_connector_module_path": "infinistore.connectors.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "fail",  # vLLM's own default
    }
    with pytest.raises(AssertionError, match='"kv_load_failure_policy": "recompute"'):
        EngineProcess(model("tiny-llama"), kv_transfer_config=transfer)
