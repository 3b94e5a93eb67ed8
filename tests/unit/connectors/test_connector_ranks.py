"""Engines of unlike tensor-parallel sizes over one store: each finds the heads that it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_engine import BLOCK_COUNT, BLOCK_TOKENS, LAYER_NAMES, LAYERS, Engine, Request, StepOutput
from fake_store import FakeStore

from infinistore.connectors.vllm.identity import EngineShape, check_split
from infinistore.connectors.vllm.layout import LayerGroup, check_cut
from infinistore.connectors.vllm.settings import ConnectorSettings
from infinistore.errors import Code, ConfigError

torch = pytest.importorskip("torch")

PROMPT = list(range(10, 31))  # 5 whole blocks and one token
BLOCKS = [7, 3, 9, 12, 40]
OTHERS = [20, 21, 22, 23, 24]
WHOLE = (LayerGroup((), BLOCK_TOKENS),)


def engine(store: FakeStore, ranks: int, kv_heads: int, **extra: Any) -> Engine:
    """An engine whose caches are blocks, heads, tokens, content; each rank has its heads."""
    held = max(1, kv_heads // ranks)

    def cache_of(rank: int) -> dict[str, Any]:
        shape = (LAYERS, BLOCK_COUNT, held, BLOCK_TOKENS, 4)
        return dict(zip(LAYER_NAMES, torch.zeros(shape, dtype=torch.uint8), strict=True))

    return Engine(store, ranks=ranks, kv_heads=kv_heads, cache_of=cache_of, **extra)


def content(head: int, layer: int, block: int) -> Any:
    return torch.from_numpy(
        np.random.default_rng((head, layer, block)).integers(1, 255, (BLOCK_TOKENS, 4), np.uint8)
    )


def heads_of(made: Engine, rank: int) -> range:
    own = made.shape.heads(rank)
    return range(own.start, own.end)


def save(made: Engine, request: Request) -> None:
    made.begin(made.admitted(request, BLOCKS, 0, request.num_tokens))
    for layer in range(LAYERS):
        for rank, cache in enumerate(made.caches):
            name = list(cache)[layer]
            for index, head in enumerate(heads_of(made, rank)):
                for block, block_id in enumerate(BLOCKS):
                    cache[name][block_id, index] = content(head, layer, block)
            made.workers[rank].save_layer(name)
    made.end()


def is_right(made: Engine) -> bool:
    return all(
        torch.equal(cache[name][block_id, index], content(head, layer, block))
        for rank, cache in enumerate(made.caches)
        for layer, name in enumerate(cache)
        for index, head in enumerate(heads_of(made, rank))
        for block, block_id in enumerate(OTHERS)
    )


@pytest.mark.parametrize("mode", ["async", "layerwise"])
@pytest.mark.parametrize(
    ("writers", "readers", "kv_heads", "values"),
    [
        (1, 2, 4, 2),
        (2, 1, 4, 2),
        (4, 2, 4, 4),
        (1, 4, 8, 4),
        (1, 4, 2, 2),  # more ranks than heads: some hold copies
        (4, 1, 2, 2),
        (2, 1, 1, 1),  # latent attention
        (1, 2, 1, 1),
    ],
)
def test_one_finds_what_the_other_saved(
    store: FakeStore, mode: str, writers: int, readers: int, kv_heads: int, values: int
) -> None:
    split = {"split_tp": max(writers, readers)}
    writer = engine(store, writers, kv_heads, **split)
    save(writer, Request("r", PROMPT))
    assert len(store.sealed) == 5 * values
    assert sum(w.counters.totals["blocks_saved"] for w in writer.workers) == 5 * values
    reader = engine(store, readers, kv_heads, load_mode=mode, **split)
    request = Request("s", PROMPT)
    assert reader.match(request) == (20, mode == "async")
    reader.scheduler.after_allocation(request, [OTHERS], 20)
    reader.begin(reader.admitted(request, OTHERS, 20, 1))
    for worker in reader.workers:
        worker.start_loads()
    finished, invalid = reader.end()
    assert (finished, invalid) == ({"s"} if mode == "async" else set(), set())
    assert is_right(reader)
    for made in (writer, reader):
        made.close()


def test_a_slice_that_does_not_come_costs_its_block(store: FakeStore) -> None:
    writer = engine(store, 2, 4, split_tp=2)
    save(writer, Request("r", PROMPT))
    reader = engine(store, 1, 4, split_tp=2)
    key = next(k for (_, k), (_, depth) in store.chains.items() if depth == 3 and b"/h2-4" in k)
    store.read_codes[key] = Code.CORRUPT
    request = Request("s", PROMPT)
    reader.match(request)
    reader.scheduler.after_allocation(request, [OTHERS], 20)
    reader.begin(StepOutput())
    reader.worker.start_loads()
    assert reader.end() == ({"s"}, {OTHERS[3]})
    totals = reader.worker.counters.totals
    assert (totals["blocks_loaded"], totals["blocks_load_failed"]) == (9, 1)
    for made in (writer, reader):
        made.close()


def test_a_block_without_all_heads_is_no_hit(store: FakeStore) -> None:
    writer = engine(store, 2, 4)
    save(writer, Request("r", PROMPT))
    reader = engine(store, 1, 4, split_tp=2)
    assert reader.match(Request("s", PROMPT)) == (20, True)
    key = next(k for k, (_, depth) in store.chains.items() if depth == 3 and b"/h2-4" in k[1])
    del store.sealed[key]
    assert reader.match(Request("t", PROMPT)) == (12, True)
    unsplit = engine(store, 1, 4)
    assert unsplit.match(Request("u", PROMPT)) == (0, False)
    for made in (writer, reader, unsplit):
        made.close()


@pytest.mark.parametrize(
    ("ranks", "kv_heads", "split_tp", "said"),
    [
        (2, 4, 1, "split_tp = 1, and this engine has 2 tensor-parallel ranks"),
        (4, 8, 2, "split_tp = 2, and this engine has 4"),
        (1, 4, 3, "split_tp = 3: 4 KV heads over 3"),
        (2, 6, 3, "split_tp = 3, and this engine has 2"),
    ],
)
def test_heads_that_would_be_parts_of_values_are_refused(
    ranks: int, kv_heads: int, split_tp: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        check_split(EngineShape(4, ranks, 1, kv_heads, WHOLE, split_tp))
    assert "choose a multiple" in str(refusal.value)
    check_split(EngineShape(4, ranks, 1, kv_heads, WHOLE))


def test_only_memory_with_one_head_after_the_other_is_cut() -> None:
    memory = torch.zeros(8, 4, 32, 64)
    check_cut("l", memory, 8, 4)
    check_cut("l", torch.zeros(8, 32, 32, 64), 8, 32)  # as many tokens as heads
    apart = torch.zeros(2, 8, 4, 32, 64)
    check_cut("l", apart, 8, 4)
    check_cut("l", apart.permute(0, 1, 3, 2, 4), 8, 4)  # named the other way round
    for unfit in (
        memory.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3),  # heads inside tokens
        torch.zeros(2, 8, 32, 4, 64),
        torch.zeros(2, 8, 4, 4, 64),  # which are the heads?
        torch.zeros(8, 2, 4, 32, 64),  # K of all heads, then V
        torch.zeros(16, 4, 16, 64),  # the kernel's blocks are smaller
    ):
        with pytest.raises(ConfigError, match="cannot be cut into heads"):
            check_cut("l", unfit, 8, 4)


def test_the_setting_is_a_number() -> None:
    assert ConnectorSettings.of({"split_tp": 2}).split_tp == 2
    for value in (-1, True, 2.0, "2"):
        with pytest.raises(ConfigError, match="split_tp"):
            ConnectorSettings.of({"split_tp": value})
