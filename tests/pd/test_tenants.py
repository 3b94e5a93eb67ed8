"""What must not be shared although the tokens are equal: two salts, an adapter and none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pair import OUTPUT, Reference, Seen, check_loaded_is_saved, run, usable_blocks, watched
from vllm_engine import EngineProcess

from figures import RecordFigure
from server_process import ServerProcess

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

BLOCK = 32


def make_adapter(folder: Path, model: Path, seed: int) -> Path:
    """A LoRA adapter with random weights, large enough to change what the model says."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    hidden, head = config["hidden_size"], config["head_dim"]
    widths = {
        "q_proj": config["num_attention_heads"] * head,
        "v_proj": config["num_key_value_heads"] * head,
    }
    torch.manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name, width in widths.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{place}.lora_A.weight"] = torch.randn(8, hidden) * 0.1
            weights[f"{place}.lora_B.weight"] = torch.randn(width, 8) * 0.1
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    settings: dict[str, Any] = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none"}
    settings |= {"r": 8, "lora_alpha": 16, "target_modules": list(widths)}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def merged(seen: list[Seen]) -> dict[str, str]:
    """What several runs saved; what all of them saved under one name must have been one thing."""
    saved: dict[str, str] = {}
    for each in seen:
        saved.update(each.saved)
    return saved


def cached(prompts: list[list[int]]) -> list[int]:
    return [usable_blocks(prompt, BLOCK) * BLOCK for prompt in prompts]


def test_two_salts_share_nothing_with_each_other_and_each_finds_its_own(
    server: ServerProcess,
    model: Callable[[str], Path],
    reference: Reference,
    prompts: list[list[int]],
    record_figure: RecordFigure,
) -> None:
    path = model("tiny-llama")
    expected = reference("tiny-llama")
    with watched(path, server.url) as engine:
        first = run(engine, prompts, 1, salt="one")
        count = len(first.saved)
        assert count > 0
        both = run(engine, prompts, 1, salt="two")
        assert len(both.saved) == 2 * count, "two salts have blocks of one name"
        assert not both.loaded
    with watched(path, server.url) as engine:
        plain = run(engine, prompts, 1)
        record_figure(
            "two salts: tokens that a request without one found", f"{plain.cached}", "none",
            ok=not plain.loaded,
        )  # fmt: skip
        assert engine.call("reset")
        one = run(engine, prompts, OUTPUT, salt="one")
        assert one.cached == cached(prompts)
        assert one.tokens == expected
        check_loaded_is_saved(both, one, set(one.loaded) & set(first.saved))
        assert engine.call("reset")
        two = run(engine, prompts, OUTPUT, salt="two")
        assert two.cached == cached(prompts)
        assert two.tokens == expected
        assert set(two.loaded) - set(one.loaded) <= set(both.saved) - set(first.saved)
        check_loaded_is_saved(both, two, set(two.loaded))


def known(engine: EngineProcess, adapter: Path) -> None:
    """Until the adapter's digest is there its requests are not cached."""
    for _ in range(100):
        before = engine.counters()["requests_unkeyed"]
        engine.generate([[5, 6, 7]], 1, adapter=str(adapter))
        if engine.counters()["requests_unkeyed"] == before:
            return
    raise AssertionError("the adapter has no digest")


def test_an_adapter_shares_nothing_with_another_or_with_none(
    server: ServerProcess,
    model: Callable[[str], Path],
    prompts: list[list[int]],
    tmp_path: Path,
    record_figure: RecordFigure,
) -> None:
    path = model("tiny-llama")
    adapters = [make_adapter(tmp_path / name, path, seed) for seed, name in enumerate("ab")]
    some = [str(adapters[0]), str(adapters[1]), None]
    lora: dict[str, Any] = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1}
    with EngineProcess(path, **lora) as engine:
        for adapter in some:
            engine.generate(prompts, 1, adapter=adapter)
        said = [engine.generate(prompts, OUTPUT, adapter=adapter) for adapter in some]
    expected = [[output["tokens"] for output in outputs] for outputs in said]
    assert expected[0] != expected[1] != expected[2] != expected[0], "the adapters change nothing"
    tenant = {"tenant": "adapters"}
    with watched(path, server.url, extra=tenant, **lora) as engine:
        counts = []
        for adapter in some:
            if adapter:
                known(engine, Path(adapter))
            prefill = run(engine, prompts, 1, adapter=adapter)
            counts.append(len(prefill.saved))
        assert not prefill.loaded
        assert counts == [counts[0], 2 * counts[0], 3 * counts[0]]
    with watched(path, server.url, extra=tenant, **lora) as engine:
        for adapter, tokens in zip(some, expected, strict=True):
            if adapter:
                known(engine, Path(adapter))
            decode = run(engine, prompts, OUTPUT, adapter=adapter)
            assert decode.cached == cached(prompts)
            assert decode.tokens == tokens
            check_loaded_is_saved(prefill, decode, set(decode.loaded))
    record_figure(
        "two adapters and none",
        f"{len(decode.loaded)} layers' heads of blocks loaded, each what was saved under its own",
        "outputs equal plain vLLM's with that adapter",
        ok=len(decode.loaded) > 0,
    )
