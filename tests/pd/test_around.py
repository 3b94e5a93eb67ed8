"""What vLLM puts around the connector: its metrics, another connector beside it, its policies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pair import OUTPUT, Reference, run, usable_blocks, watched
from vllm_engine import EngineProcess

from figures import RecordFigure
from server_process import ServerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

OURS = {
    "kv_connector": "InfiniStoreConnector",
    "kv_connector_module_path": "infinistore.connectors.vllm",
    "kv_role": "kv_both",
}
RECOMPUTE = {"kv_load_failure_policy": "recompute"}


def transfer(url: str, **extra: Any) -> dict[str, Any]:
    return OURS | {"kv_connector_extra_config": {"url": url, "lookup_timeout_s": 10, **extra}}


def test_another_connector_beside_ours(
    server: ServerProcess,
    model: Callable[[str], Path],
    reference: Reference,
    prompts: list[list[int]],
    tmp_path: Path,
    record_figure: RecordFigure,
) -> None:
    """vLLM's MultiConnector: it asks ours first, and saves to both."""
    path = model("tiny-llama")
    expected = reference("tiny-llama")
    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }
    both = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        **RECOMPUTE,
        "kv_connector_extra_config": {"connectors": [transfer(server.url) | RECOMPUTE, example]},
    }
    with EngineProcess(path, kv_transfer_config=both) as engine:
        engine.generate(prompts, 1)
        saved = engine.call("metrics")
    assert saved["vllm:infinistore_blocks_saved"] > 0
    with EngineProcess(path, kv_transfer_config=both) as engine:
        outputs = engine.generate(prompts, OUTPUT)
        told = engine.call("metrics")
    cached = [output["cached"] for output in outputs]
    record_figure(
        "beside another connector in vLLM's MultiConnector",
        f"{told['vllm:infinistore_tokens_hit']} tokens from the store, {sum(cached)} not computed",
        "outputs equal plain vLLM's",
        ok=[output["tokens"] for output in outputs] == expected,
    )
    assert told["vllm:infinistore_tokens_hit"] > 0
    assert cached == [usable_blocks(prompt, 32) * 32 for prompt in prompts]


def test_vllms_metrics_have_what_the_connector_counted(
    server: ServerProcess, model: Callable[[str], Path], prompts: list[list[int]]
) -> None:
    with watched(model("tiny-llama"), server.url, extra={"tenant": "metrics"}) as engine:
        engine.generate(prompts, 1)
        assert engine.call("reset")
        run(engine, prompts, OUTPUT)
        counted, told = engine.counters(), engine.call("metrics")
    for name, count in counted.items():
        assert told[f"vllm:infinistore_{name}"] == count, name
    assert counted["blocks_saved"] > 0
    assert counted["tokens_hit"] == told["vllm:external_prefix_cache_hits"] > 0


def test_the_policy_that_fails_requests_is_refused_and_allowed_when_asked_for(
    server: ServerProcess, model: Callable[[str], Path], prompts: list[list[int]]
) -> None:
    path = model("tiny-llama")
    fail = {"kv_load_failure_policy": "fail"}
    with pytest.raises(AssertionError, match='ConfigError: kv_load_failure_policy is "fail"'):
        EngineProcess(path, kv_transfer_config=transfer(server.url) | fail)
    allowed = transfer(server.url, allow_load_failure_fail=True, tenant="fail") | fail
    with watched(path, server.url, kv_transfer_config=allowed) as engine:
        run(engine, prompts, 1)
        assert engine.call("reset")
        engine.call("rpc", method="break_next_loads")
        outputs = engine.generate(prompts, OUTPUT)
        counters = engine.counters()
    assert counters["blocks_load_failed"] > 0
    assert any(output["reason"] == "error" for output in outputs)
