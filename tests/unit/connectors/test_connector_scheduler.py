"""The scheduler side over a fake store: it never waits, and it lets every lease go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import BLOCK_TOKENS, Engine, Request, StepOutput
from fake_store import FakeStore

from infinistore.connectors.vllm.metadata import BlockSaves
from infinistore.errors import Code

PROMPT = list(range(10, 31))  # 21 tokens: 5 whole blocks and one token
BLOCKS = [7, 3, 9, 12, 40, 41]


def saved(store: FakeStore, request: Request) -> None:
    """Puts a request's blocks into the store by another engine."""
    other = Engine(store)
    other.prefill(Request(f"{request.request_id}-elsewhere", request.all_token_ids), BLOCKS)
    other.close()


def test_a_request_whose_blocks_are_there_gets_them(engine: Engine, store: FakeStore) -> None:
    request = Request("r", PROMPT)
    saved(store, request)
    assert engine.match(request) == (20, True)
    assert engine.match(request, computed=8) == (12, True)
    assert engine.match(request, computed=20) == (0, False)


def test_the_last_token_is_computed_even_if_its_block_is_there(
    engine: Engine, store: FakeStore
) -> None:
    saved(store, Request("r", PROMPT[:20]))
    assert engine.match(Request("r", PROMPT[:20])) == (16, True)


def test_a_short_prompt_asks_nothing(engine: Engine) -> None:
    assert engine.match(Request("r", PROMPT[:4])) == (0, False)
    assert engine.scheduler.counters.totals["lookups"] == 0


def test_an_answer_on_its_way_is_none_and_asked_once(engine: Engine, store: FakeStore) -> None:
    request = Request("r", PROMPT)
    saved(store, request)
    store.hold_lookups = True
    engine.scheduler.on_new_request(request)
    assert [engine.match(request) for _ in range(100)] == [(None, False)] * 100
    assert engine.scheduler.counters.totals["lookups"] == 1
    engine.links[0].client.lookups[0].run()  # type: ignore[union-attr]
    assert engine.match(request) == (20, True)


def test_a_late_answer_is_a_miss_and_its_lease_is_let_go(engine: Engine, store: FakeStore) -> None:
    request = Request("r", PROMPT)
    saved(store, request)
    store.hold_lookups = True
    assert engine.match(request) == (None, False)
    engine.clock.now_s += 0.3
    assert engine.match(request) == (0, False)
    assert engine.match(request) == (0, False)
    engine.links[0].client.lookups[0].run()  # type: ignore[union-attr]
    assert store.leases
    engine.begin(StepOutput())
    assert not store.leases
    assert engine.scheduler.counters.totals["lookups_failed"] == 1


def test_a_dead_store_is_a_miss_at_once(engine: Engine, store: FakeStore) -> None:
    store.is_dead = True
    assert engine.match(Request("r", PROMPT)) == (0, False)


def test_without_a_store_at_the_start_the_engine_computes(store: FakeStore) -> None:
    store.is_dead = True
    engine = Engine(store)
    request = Request("r", PROMPT)
    assert engine.match(request) == (0, False)
    engine.prefill(request, BLOCKS)
    assert engine.worker.counters.totals["blocks_save_skipped"] == 5
    engine.close()


def test_a_failed_lookup_is_a_miss(engine: Engine, store: FakeStore) -> None:
    store.hold_lookups = True
    request = Request("r", PROMPT)
    assert engine.match(request) == (None, False)
    engine.links[0].client.lookups[0].fail()  # type: ignore[union-attr]
    assert engine.match(request) == (0, False)


def test_an_answer_that_is_a_little_late_costs_no_step(engine: Engine, store: FakeStore) -> None:
    request = Request("r", PROMPT)
    saved(store, request)
    store.hold_lookups = store.answers_late = True
    assert engine.match(request) == (20, True)


def test_a_store_that_dies_while_its_answer_is_awaited_is_a_miss(
    engine: Engine, store: FakeStore
) -> None:
    store.hold_lookups = store.dies_awaited = True
    assert engine.match(Request("r", PROMPT)) == (0, False)


def test_a_step_waits_for_one_answer_and_for_each_only_once(
    engine: Engine, store: FakeStore
) -> None:
    store.hold_lookups = True
    requests = [Request(name, PROMPT) for name in "abc"]
    waits = []
    for _ in range(4):
        for request in requests:
            assert engine.match(request) == (None, False)
        lookups = engine.links[0].client.lookups  # type: ignore[union-attr]
        waits.append([lookup.waits for lookup in lookups])
        engine.begin(StepOutput())
    assert waits == [[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]]


def test_what_waits_for_room_keeps_its_lease(engine: Engine, store: FakeStore) -> None:
    request = Request("r", PROMPT)
    saved(store, request)
    for _ in range(50):
        engine.clock.now_s += 1
        assert engine.match(request) == (20, True)
    assert len(store.renewed) == 4
    assert len(store.leases) == 1


def test_an_answer_whose_lease_ran_out_is_asked_again(engine: Engine, store: FakeStore) -> None:
    request = Request("r", PROMPT)
    saved(store, request)
    assert engine.match(request) == (20, True)
    store.sealed.clear()
    engine.clock.now_s += 30
    assert engine.match(request) == (0, False)
    assert not store.leases


def test_a_lease_ends_with_the_load(engine: Engine, store: FakeStore) -> None:
    request = Request("r", PROMPT)
    saved(store, request)
    engine.match(request)
    engine.scheduler.after_allocation(request, [BLOCKS], 20)
    engine.begin(StepOutput())
    assert store.leases
    engine.worker.start_loads()
    assert engine.end() == ({"r"}, set())
    assert not store.leases
    assert engine.holds(request, BLOCKS, 5)


def test_a_lease_ends_when_nothing_is_loaded(engine: Engine, store: FakeStore) -> None:
    request = Request("r", PROMPT)
    saved(store, request)
    engine.match(request)
    engine.scheduler.after_allocation(request, [BLOCKS], 0)
    assert not store.leases


def test_a_lease_ends_with_an_aborted_request(engine: Engine, store: FakeStore) -> None:
    request = Request("r", PROMPT)
    saved(store, request)
    engine.match(request)
    engine.scheduler.on_finished(request)
    assert not store.leases


def test_a_request_aborted_in_its_load_keeps_the_lease_until_the_bytes_stop(
    engine: Engine, store: FakeStore
) -> None:
    request = Request("r", PROMPT)
    saved(store, request)
    store.hold_reads = True
    engine.match(request)
    engine.scheduler.after_allocation(request, [BLOCKS], 20)
    engine.begin(StepOutput())
    engine.worker.start_loads()
    engine.scheduler.on_finished(request)
    assert engine.end() == (set(), set())
    assert store.leases
    engine.worker._link.client.batches[-1].run()  # type: ignore[union-attr]
    assert engine.end()[0] == {"r"}
    assert not store.leases


def test_only_the_blocks_beyond_the_engines_own_are_loaded(
    engine: Engine, store: FakeStore
) -> None:
    request = Request("r", PROMPT)
    saved(store, request)
    assert engine.match(request, computed=8) == (12, True)
    engine.scheduler.after_allocation(request, [BLOCKS], 12)
    plan = engine.begin(StepOutput())
    assert [load.block_ids for load in plan.loads] == [BLOCKS[2:5]]
    assert plan.loads[0].names == engine.scheduler._plans["r"].names(2, 5)


def test_a_request_that_failed_to_load_computes_and_does_not_try_for_ever(
    engine: Engine, store: FakeStore
) -> None:
    request = Request("r", PROMPT)
    saved(store, request)
    engine.match(request)
    # A store that says that it has the blocks, and cannot give them.
    store.read_codes = {key: Code.TIMEOUT for _, key in store.sealed}
    engine.scheduler.after_allocation(request, [BLOCKS], 20)
    engine.begin(StepOutput())
    engine.worker.start_loads()
    assert engine.end() == ({"r"}, set(BLOCKS[:5]))
    assert engine.match(request) == (0, False)
    assert not store.leases


def test_a_prefill_saves_each_whole_block_with_its_parent(engine: Engine, store: FakeStore) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    assert len(store.sealed) == 5
    chain = {depth: (key, parent) for (_, key), (parent, depth) in store.chains.items()}
    assert chain[0][1] is None
    assert all(chain[n][1] == chain[n - 1][0] for n in range(1, 5))


def collect(engine: Engine, output: StepOutput) -> BlockSaves:
    saves = engine.begin(output).saves
    return saves[0] if saves else BlockSaves()


def test_a_chunked_prefill_saves_a_block_in_the_step_that_fills_it(engine: Engine) -> None:
    request = Request("r", PROMPT)
    assert len(collect(engine, engine.admitted(request, BLOCKS[:2], 0, 6))) == 1
    assert collect(engine, StepOutput().running(request, [], 6, 1)).depths == []
    saves = collect(engine, StepOutput().running(request, BLOCKS[2:4], 7, 9))
    assert saves.depths == [1, 2, 3]
    assert saves.block_ids == BLOCKS[1:4]


def test_decoded_blocks_are_saved_when_their_last_token_is_known(engine: Engine) -> None:
    request = Request("r", PROMPT[:7])
    assert len(collect(engine, engine.admitted(request, BLOCKS[:2], 0, 7))) == 1
    # Scheduled ahead of the token that the last step samples.
    assert len(collect(engine, StepOutput().running(request, [], 7, 1))) == 0
    request.all_token_ids = PROMPT[:9]
    saves = collect(engine, StepOutput().running(request, BLOCKS[2:3], 8, 1))
    assert saves.depths == [1]
    assert not saves.by_layer


def test_a_step_with_prefill_streams_by_layer(engine: Engine) -> None:
    assert collect(engine, engine.admitted(Request("r", PROMPT), BLOCKS, 0, 21)).by_layer


def test_blocks_that_the_store_has_are_not_sent_again(engine: Engine, store: FakeStore) -> None:
    request = Request("r", PROMPT)
    saved(store, request)
    engine.match(request, computed=8)
    engine.scheduler.after_allocation(request, [BLOCKS], 12)
    assert len(collect(engine, engine.admitted(request, BLOCKS, 20, 1))) == 0


def test_local_hits_that_the_store_lost_are_sent_again(engine: Engine, store: FakeStore) -> None:
    request = Request("r", PROMPT)
    assert engine.match(request, computed=16) == (0, False)
    engine.scheduler.after_allocation(request, [BLOCKS], 0)
    saves = collect(engine, engine.admitted(request, BLOCKS, 16, 5))
    assert saves.depths == [0, 1, 2, 3, 4]


def test_requests_that_begin_alike_in_one_step_save_a_block_once(engine: Engine) -> None:
    first, second = Request("r", PROMPT), Request("s", PROMPT[:8] + PROMPT[:9])
    output = engine.admitted(first, BLOCKS, 0, 21)
    blocks = [*BLOCKS[:2], 20, 21, 22]
    engine.match(second, 8)
    engine.scheduler.after_allocation(second, [blocks], 0)
    saves = collect(engine, output.new(second, blocks, 8, 9))
    assert saves.block_ids == [*BLOCKS[:5], 20, 21]
    assert len(set(saves.names)) == len(saves)


def test_a_preempted_request_is_saved_from_its_new_blocks(engine: Engine) -> None:
    request = Request("r", PROMPT)
    collect(engine, engine.admitted(request, BLOCKS[:3], 0, 9))
    engine.match(request)
    engine.scheduler.after_allocation(request, [[20, 21, 22, 23, 24, 25]], 0)
    resumed = StepOutput().running(request, [20, 21, 22, 23, 24, 25], 0, 21, resumed=True)
    saves = collect(engine, resumed)
    assert saves.block_ids == [20, 21, 22, 23, 24]


def test_a_request_taken_back_by_a_failed_load_saves_again(engine: Engine) -> None:
    request = Request("r", PROMPT)
    collect(engine, engine.admitted(request, BLOCKS, 0, 21))
    assert collect(engine, StepOutput().running(request, [], 8, 13)).depths == [2, 3, 4]


def test_an_answer_says_what_was_saved(engine: Engine) -> None:
    request = Request("r", PROMPT)
    engine.prefill(request, BLOCKS)
    params = engine.scheduler.on_finished(request)
    assert params is not None
    assert params["infinistore"]["blocks"] == 5  # type: ignore[index]


def test_an_answer_says_nothing_while_saves_are_lost(engine: Engine, store: FakeStore) -> None:
    request = Request("r", PROMPT)
    store.write_code = Code.DISCONNECTED
    engine.prefill(request, BLOCKS)
    engine.begin(StepOutput().running(request, [], 0, 21))
    engine.end()
    assert not engine.worker.is_saving
    assert engine.scheduler.on_finished(request) is None


def announced(store: FakeStore) -> tuple[Request, Engine]:
    """A request whose prefill has announced its blocks, and the engine that saves them."""
    prefill = Engine(store)
    request = Request("p", PROMPT)
    prefill.begin(prefill.admitted(request, BLOCKS, 0, 21))
    params = prefill.scheduler.on_finished(request)
    return Request("d", PROMPT, kv_transfer_params=params), prefill


def test_decode_waits_for_announced_blocks(engine: Engine, store: FakeStore) -> None:
    request, prefill = announced(store)
    assert engine.match(request) == (None, False)
    engine.clock.now_s += 0.1
    assert engine.match(request) == (None, False)
    prefill.forward(Request("p", PROMPT), BLOCKS)
    prefill.end()
    engine.clock.now_s += 0.1
    engine.match(request)
    assert engine.match(request) == (20, True)
    assert len(store.leases) == 1
    prefill.close()


def test_decode_waits_for_a_dead_prefill_only_until_its_deadline(
    engine: Engine, store: FakeStore
) -> None:
    request, prefill = announced(store)
    prefill.close()
    for _ in range(9):
        assert engine.match(request) == (None, False)
        engine.clock.now_s += 0.1
    engine.clock.now_s += 0.2
    engine.match(request)
    assert engine.match(request) == (0, False)
    assert not store.leases


def test_a_producer_offers_all_for_it_does_not_ask(store: FakeStore) -> None:
    engine = Engine(store, loads=False)
    request = Request("r", PROMPT)
    assert engine.match(request) == (0, False)
    saves = collect(engine, engine.admitted(request, BLOCKS, 16, 5))
    assert saves.depths == [0, 1, 2, 3, 4]
    engine.close()


def test_a_consumer_saves_nothing(store: FakeStore) -> None:
    engine = Engine(store, saves=False)
    request = Request("r", PROMPT)
    assert len(collect(engine, engine.admitted(request, BLOCKS, 0, 21))) == 0
    assert engine.scheduler.on_finished(request) is None
    engine.close()


def test_a_request_that_must_not_read_the_cache_is_saved(engine: Engine, store: FakeStore) -> None:
    request = Request("r", PROMPT, skip_reading_prefix_cache=True)
    saved(store, request)
    assert engine.match(request) == (0, False)
    engine.prefill(request, BLOCKS)
    assert engine.worker.counters.totals["blocks_save_present"] == 5


@pytest.mark.parametrize(
    "unlike",
    [
        {"prompt_embeds": object()},
        {"resumable": True},
        {"lora_request": SimpleNamespace(lora_name="x", lora_int_id=1, lora_path="/nowhere")},
    ],
)
def test_a_request_without_a_key_is_neither_saved_nor_loaded(
    engine: Engine, store: FakeStore, unlike: dict[str, Any]
) -> None:
    saved(store, Request("r", PROMPT))
    count = len(store.sealed)
    request = Request("r", PROMPT, **unlike)
    assert engine.match(request) == (0, False)
    engine.prefill(request, BLOCKS)
    assert len(store.sealed) == count
    assert engine.scheduler.on_finished(request) is None
    assert engine.scheduler.counters.totals["requests_unkeyed"] == 1


def item(identifier: str, offset: int, length: int) -> Any:
    where = SimpleNamespace(offset=offset, length=length)
    return SimpleNamespace(identifier=identifier, mm_position=where)


@pytest.mark.parametrize(
    "unlike", [{"cache_salt": "x"}, {"mm_features": [item("image", 2, 5)]}], ids=["salt", "image"]
)
def test_a_salt_or_an_image_keeps_requests_apart(
    engine: Engine, store: FakeStore, unlike: dict[str, Any]
) -> None:
    saved(store, Request("r", PROMPT))
    request = Request("s", PROMPT, **unlike)
    assert engine.match(request) == (0, False)
    engine.prefill(request, BLOCKS)
    assert len(store.sealed) == 10
    assert engine.match(Request("t", PROMPT, **unlike)) == (20, True)
    assert engine.match(Request("u", PROMPT)) == (20, True)


def test_an_image_in_the_third_block_leaves_the_first_two_shared(
    engine: Engine, store: FakeStore
) -> None:
    saved(store, Request("r", PROMPT))
    request = Request("s", PROMPT, mm_features=[item("image", 2 * BLOCK_TOKENS, 3)])
    assert engine.match(request) == (8, True)


def test_an_extra_key_that_is_new_to_us_is_not_cached(store: FakeStore) -> None:
    engine = Engine(store)
    keys: list[object] = [("cache_salt", "x"), ("mm", "image", 0)]
    engine.scheduler._extra_keys = lambda request, start, end: keys
    assert engine.match(Request("r", PROMPT)) == (0, False)
    assert engine.scheduler.counters.totals["requests_unkeyed"] == 0
    keys.append(("weather", "rain"))
    engine.match(Request("s", PROMPT))
    assert engine.scheduler.counters.totals["requests_unkeyed"] == 1
    engine.close()


def test_other_weights_see_nothing(store: FakeStore) -> None:
    saved(store, Request("r", PROMPT))
    engine = Engine(store, weights="other")
    assert engine.match(Request("r", PROMPT)) == (0, False)
    engine.close()
