"""vLLM over a cluster of three nodes in a real etcd: its URL is all that an engine is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from test_vllm_pd import tokens, whole_blocks
from vllm_engine import EngineProcess

from etcd_process import EtcdProcess
from figures import RecordFigure
from server_process import ServerProcess
from waiting import until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

OUTPUT = 8


def test_blocks_with_a_replica_are_found_when_a_node_is_killed(
    model: Callable[[str], Path],
    plain: Callable[[str], list[list[int]]],
    prompts: list[list[int]],
    record_figure: RecordFigure,
) -> None:
    expected = [output[:OUTPUT] for output in plain("tiny-llama")]
    whole = [whole_blocks(prompt) for prompt in prompts]
    with contextlib.ExitStack() as cleanup:
        etcd = cleanup.enter_context(contextlib.closing(EtcdProcess()))
        nodes = []
        for name in ("a", "b", "c"):
            nodes.append(ServerProcess(f"--cluster={etcd.url()}", f"--node-name={name}"))
            cleanup.callback(nodes[-1].kill)
        until(lambda: len(nodes[0].admin("/cluster")["nodes"]) == len(nodes))
        engine = cleanup.enter_context(
            EngineProcess(model("tiny-llama"), etcd.url(), extra={"replicas": 2})
        )
        assert tokens(engine.generate(prompts, OUTPUT)) == expected
        assert engine.call("reset")
        outputs = engine.generate(prompts, OUTPUT)
        assert (tokens(outputs), [output["cached"] for output in outputs]) == (expected, whole)

        keys = [node.stats()["keys"] - 1 for node in nodes]  # but for its note
        assert all(keys)
        nodes[keys.index(max(keys))].kill()
        assert engine.call("reset")
        outputs = engine.generate(prompts, OUTPUT)
        found = sum(output["cached"] for output in outputs)
        record_figure(
            f"one of three nodes killed, that with {max(keys)} values of {sum(keys)}",
            f"{found} of {sum(whole)} tokens found, outputs equal plain vLLM's",
            f"{sum(whole)}",
            ok=tokens(outputs) == expected and found == sum(whole),
        )
