"""A load that fails in a model with windows: the request begins anew, and says what it should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pair import OUTPUT, Reference, run, watched

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
