"""Models with sliding windows: blocks by group, some of them given back, all in one memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake_engine import (
    BLOCK_COUNT,
    BLOCK_TOKENS,
    RUN_BYTES,
    Engine,
    FakeTensor,
    Request,
    StepOutput,
)
from fake_store import FakeStore

from infinistore.connectors.vllm import decisions
from infinistore.connectors.vllm.identity import EngineShape, check_windows
from infinistore.connectors.vllm.layout import LayerGroup
from infinistore.connectors.vllm.settings import ConnectorSettings
from infinistore.errors import Code, ConfigError

PROMPT = list(range(10, 31))  # 21 tokens: 5 whole blocks and one token
WINDOW = 6  # the next token of 20 sees from 15 on: blocks 3 and 4
FULL = LayerGroup(("l.0", "l.2"), BLOCK_TOKENS)
WINDOWED = LayerGroup(("l.1", "l.3"), BLOCK_TOKENS, WINDOW)
IDS = [[7, 3, 9, 12, 40, 41], [20, 21, 22, 23, 24, 25]]  # of each group
OTHERS = [[30, 31, 32, 33, 34, 35], [0, 0, 0, 50, 51, 52]]  # 0: vLLM's null block


@pytest.fixture
def hybrid(store: FakeStore) -> Iterator[Engine]:
    """An engine whose second group sees a window; the groups lie over each other in memory."""
    engine = Engine(store, groups=(FULL, WINDOWED))
    memory = [FakeTensor(), FakeTensor()]
    engine.caches[0] = {f"l.{n}": memory[n // 2] for n in range(4)}
    engine.worker.register(engine.caches[0], BLOCK_COUNT)
    yield engine
    engine.close()


def fill(engine: Engine, ids: list[list[int]], first: int = 0, end: int = 5) -> None:
    """What the model writes: a byte for each group, layer and block."""
    for number, name in enumerate(engine.caches[0]):
        group = number % 2
        for block in range(first, end):
            engine.caches[0][name].bytes[ids[group][block]] = content(group, number // 2, block)


def content(group: int, layer: int, block: int) -> int:
    return 100 * group + 50 * layer + block + 1


def admitted(engine: Engine, request: Request, ids: Any, computed: int, count: int) -> StepOutput:
    engine.match(request, computed)
    engine.scheduler.after_allocation(request, ids, 0)
    output = StepOutput().new(request, [], computed, count)
    output.scheduled_new_reqs[-1].block_ids = tuple(ids)
    return output


def prefill(engine: Engine, request: Request, ids: list[list[int]]) -> None:
    engine.begin(admitted(engine, request, ids, 0, request.num_tokens))
    fill(engine, ids)
    for name in engine.caches[0]:
        engine.worker.save_layer(name)
    engine.end()


def test_each_group_saves_its_own_blocks_under_its_own_keys(
    hybrid: Engine, store: FakeStore
) -> None:
    prefill(hybrid, Request("r", PROMPT), IDS)
    assert len(store.sealed) == 10
    for (_, key), value in store.sealed.items():
        group = int(key.partition(b"/g")[2][:1])
        block = store.chains["w", key][1]
        expected = b"".join(bytes([content(group, n, block)]) * RUN_BYTES for n in range(2))
        assert value == expected
    assert hybrid.worker.counters.totals["bytes_saved"] == 10 * 2 * RUN_BYTES


def test_a_load_fills_the_window_only_and_leaves_the_null_block_alone(
    hybrid: Engine, store: FakeStore
) -> None:
    prefill(hybrid, Request("r", PROMPT), IDS)
    hybrid.wipe()
    request = Request("s", PROMPT)
    assert hybrid.match(request) == (20, True)
    hybrid.scheduler.after_allocation(request, OTHERS, 20)
    plan = hybrid.begin(StepOutput())
    assert [(load.group, load.block_ids) for load in plan.loads] == [
        (0, OTHERS[0][:5]),
        (1, [50, 51]),
    ]
    hybrid.worker.start_loads()
    assert hybrid.end() == ({"s"}, set())
    for number, tensor in enumerate(hybrid.caches[0].values()):
        group, layer = number % 2, number // 2
        for block in range(5) if group == 0 else (3, 4):
            assert set(tensor.bytes[OTHERS[group][block]]) == {content(group, layer, block)}
        assert not tensor.bytes[0].any()
    assert hybrid.worker.counters.totals["bytes_loaded"] == 7 * 2 * RUN_BYTES


def test_a_hit_needs_every_group(hybrid: Engine, store: FakeStore) -> None:
    prefill(hybrid, Request("r", PROMPT), IDS)
    gone = next(k for k, (_, depth) in store.chains.items() if depth == 2 and b"/g1" in k[1])
    del store.sealed[gone]
    assert hybrid.match(Request("s", PROMPT)) == (8, True)


def test_what_has_left_the_window_is_not_offered(hybrid: Engine) -> None:
    """It was found in the engine's own cache, as null blocks; the full group has all of it."""
    request = Request("r", PROMPT)
    plan = hybrid.begin(admitted(hybrid, request, OTHERS, 16, 5))
    assert [(saves.group, saves.depths) for saves in plan.saves] == [
        (0, [0, 1, 2, 3, 4]),
        (1, [2, 3, 4]),
    ]


def test_fresh_blocks_go_to_their_groups(hybrid: Engine) -> None:
    request = Request("r", PROMPT)
    hybrid.begin(admitted(hybrid, request, [ids[:2] for ids in IDS], 0, 8))
    output = StepOutput().running(request, [1], 8, 13)
    output.scheduled_cached_reqs.new_block_ids[-1] = tuple(ids[2:] for ids in IDS)
    plan = hybrid.begin(output)
    assert [saves.block_ids for saves in plan.saves] == [ids[2:5] for ids in IDS]


@pytest.mark.parametrize("group", [0, 1])
def test_a_block_that_does_not_come_takes_the_whole_request_back(
    hybrid: Engine, store: FakeStore, group: int
) -> None:
    prefill(hybrid, Request("r", PROMPT), IDS)
    key = next(
        key
        for (_, key), (_, depth) in store.chains.items()
        if depth == 4 and b"/g%d" % group in key
    )
    store.read_codes[key] = Code.CORRUPT
    request = Request("s", PROMPT)
    assert hybrid.match(request) == (20, True)
    hybrid.scheduler.after_allocation(request, OTHERS, 20)
    hybrid.begin(StepOutput())
    hybrid.worker.start_loads()
    hybrid.worker.end_saves()
    assert hybrid.worker.take_finished() == {"s"}
    assert hybrid.worker.take_failed() == {"s"}
    assert hybrid.worker.take_failed() == hybrid.worker.take_invalid() == set()
    hybrid.scheduler.on_output({"s"}, set(), True, failed={"s"})
    assert not store.leases
    assert hybrid.match(request) == (0, False)  # no second load, or it might go on for ever


def test_one_group_that_hangs_keeps_the_request_waiting(hybrid: Engine, store: FakeStore) -> None:
    prefill(hybrid, Request("r", PROMPT), IDS)
    store.hold_reads = True
    request = Request("s", PROMPT)
    hybrid.match(request)
    hybrid.scheduler.after_allocation(request, OTHERS, 20)
    hybrid.begin(StepOutput())
    hybrid.worker.start_loads()
    full, windowed = hybrid.links[1].client.batches[-2:]  # type: ignore[union-attr]
    for batch in (windowed, full):
        hybrid.begin(StepOutput())
        assert hybrid.end() == (set(), set())
        batch.run()
    hybrid.begin(StepOutput())
    assert hybrid.end() == ({"s"}, set())


def test_a_block_is_kept_while_the_next_token_sees_some_of_it() -> None:
    """As vLLM counts: with 20 tokens computed and a window of 6, tokens 15 on are seen."""
    kept = [n for n in range(5) if decisions.is_kept(n, 4, 20, WINDOW)]
    assert kept == [3, 4]
    assert [n for n in range(5) if decisions.is_kept(n, 4, 20, 5)] == [4]
    assert [n for n in range(5) if decisions.is_kept(n, 4, 20, 100)] == [0, 1, 2, 3, 4]
    assert decisions.is_kept(0, 4, 1 << 20, None)


def test_windows_need_a_vllm_that_takes_requests_back_and_loads_between_steps() -> None:
    shape = EngineShape(4, 1, 1, 4, (FULL, WINDOWED))
    check_windows(shape, ConnectorSettings(), takes_requests_back=True)
    with pytest.raises(ConfigError, match="--disable-hybrid-kv-cache-manager"):
        check_windows(shape, ConnectorSettings(), takes_requests_back=False)
    layerwise = ConnectorSettings(load_mode="layerwise")
    with pytest.raises(ConfigError, match='"load_mode": "async"'):
        check_windows(shape, layerwise, takes_requests_back=True)
    whole = EngineShape(4, 1, 1, 4, (FULL,))
    check_windows(whole, layerwise, takes_requests_back=False)
