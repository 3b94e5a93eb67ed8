"""The worker side over a fake store: right bytes or reported blocks, and nothing half saved."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from fake_engine import LAYERS, RUN_BYTES, Engine, Request, StepOutput
from fake_store import GPU, FakeBatch, FakeStore

from infinistore.connectors._blocks import (
    BlockParts,
    CacheMap,
    load_pieces,
    save_pieces,
    unit_layers,
)
from infinistore.connectors.vllm import fencing
from infinistore.connectors.vllm.saves import SaveGate
from infinistore.errors import Code
from infinistore.keys import HeadRange, block_key, head_ranges

PROMPT = list(range(10, 31))
BLOCKS = [7, 3, 9, 12, 40, 41]
OTHERS = [20, 21, 22, 23, 24, 25]
NAMES = [f"model.layers.{n}.attn" for n in range(LAYERS)]


@pytest.fixture(params=["cpu", f"cuda:{GPU}"])
def device(request: pytest.FixtureRequest) -> str:
    """Where the KV cache is."""
    return str(request.param)


def batches(engine: Engine) -> list[FakeBatch]:
    client = engine.worker._link.client
    return list(client.batches)  # type: ignore[union-attr]


def load(engine: Engine, request: Request, block_ids: list[int]) -> None:
    """A request whose blocks are in the store, up to the step that loads them."""
    tokens, _ = engine.match(request)
    assert tokens
    engine.scheduler.after_allocation(request, [block_ids], tokens)


def test_a_layer_is_on_its_way_before_the_next_one_computes(
    engine: Engine, store: FakeStore
) -> None:
    request = Request("r", PROMPT)
    engine.begin(engine.admitted(request, BLOCKS, 0, 21))
    for layer in range(LAYERS):
        engine.compute(request, BLOCKS, layer, 21)
        engine.worker.save_layer(NAMES[layer])
        if layer < LAYERS - 1:
            assert len(store.staged) == 5
            for staged in store.staged.values():
                assert staged.filled == {(n * RUN_BYTES, RUN_BYTES) for n in range(layer + 1)}
    engine.end()
    assert len(store.sealed) == 5
    assert [entry for entry in store.log if entry[0] == "write"] == [
        ("write", 5, layer * RUN_BYTES) for layer in range(LAYERS)
    ]


def test_only_wait_for_save_waits(engine: Engine, store: FakeStore) -> None:
    store.hold_writes = True
    request = Request("r", PROMPT)
    engine.begin(engine.admitted(request, BLOCKS, 0, 21))
    engine.forward(request, BLOCKS)
    done = threading.Event()
    thread = threading.Thread(target=lambda: (engine.worker.end_saves(), done.set()))
    thread.start()
    assert not done.wait(0.05)
    for batch in batches(engine):
        batch.run()
    thread.join(5)
    assert done.is_set()
    assert engine.worker.counters.totals["blocks_saved"] == 5


def test_layers_whose_hooks_are_not_called_are_saved_at_the_end(
    engine: Engine, store: FakeStore
) -> None:
    request = Request("r", PROMPT)
    engine.begin(engine.admitted(request, BLOCKS, 0, 21))
    for layer in range(LAYERS):
        engine.compute(request, BLOCKS, layer, 21)
    engine.worker.save_layer(NAMES[1])
    engine.worker.save_layer(NAMES[1])
    engine.worker.save_layer("model.vision.attn")
    engine.end()
    engine.wipe()
    request = Request("s", PROMPT)
    load(engine, request, OTHERS)
    engine.begin(StepOutput())
    engine.worker.start_loads()
    engine.end()
    assert engine.holds(request, OTHERS, 5)


def test_a_decode_step_saves_whole_values_in_one_piece(engine: Engine, store: FakeStore) -> None:
    request = Request("r", PROMPT[:4])
    engine.begin(engine.admitted(request, BLOCKS, 3, 1))
    engine.forward(request, BLOCKS)
    engine.end()
    assert store.log[-1] == ("write", 1, 0)
    assert len(store.sealed) == 1
    assert engine.worker.counters.totals["bytes_saved"] == LAYERS * RUN_BYTES


def test_blocks_that_are_there_are_sent_with_no_further_layer(
    engine: Engine, store: FakeStore
) -> None:
    engine.prefill(Request("r", PROMPT[:13]), BLOCKS)
    store.log.clear()
    engine.prefill(Request("s", PROMPT), OTHERS)
    assert [count for _, count, _ in store.log] == [5, 2, 2]
    assert engine.worker.counters.totals["blocks_save_present"] == 3
    store.log.clear()
    engine.prefill(Request("t", PROMPT), OTHERS)
    assert [count for _, count, _ in store.log] == [5]


def test_a_value_that_was_evicted_between_two_layers_is_not_left_half_written(
    store: FakeStore,
) -> None:
    engine = Engine(store, loads=False)  # it offers blocks whether they are there or not
    engine.prefill(Request("r", PROMPT), BLOCKS)
    store.hold_writes = True
    request = Request("s", PROMPT)
    engine.begin(engine.admitted(request, OTHERS, 0, 21))
    engine.forward(request, OTHERS)
    first, *rest = batches(engine)[-LAYERS:]
    first.run()
    assert first.wait() == [Code.EXISTS] * 5
    store.sealed.clear()
    for batch in rest:
        batch.run()
    assert len(store.staged) == 5
    engine.end()
    assert not store.staged
    assert not store.sealed
    assert engine.worker.counters.totals["blocks_save_failed"] == 5
    engine.close()


@pytest.mark.parametrize("mode", ["async", "layerwise"])
def test_a_load_brings_the_bytes_that_were_saved(store: FakeStore, device: str, mode: str) -> None:
    engine = Engine(store, device=device, load_mode=mode)
    engine.prefill(Request("r", PROMPT), BLOCKS)
    engine.wipe()
    request = Request("s", PROMPT)
    load(engine, request, OTHERS)
    engine.begin(engine.admitted(request, OTHERS, 20, 1))
    engine.worker.start_loads()
    for name in NAMES:
        engine.worker.wait_layer(name)
    engine.end()
    assert engine.holds(request, OTHERS, 5)
    assert engine.worker.counters.totals["blocks_loaded"] == 5
    for _ in range(2):
        engine.begin(StepOutput())
        engine.end()
    assert not store.leases
    engine.close()


def test_an_asynchronous_load_is_reported_once_and_only_when_it_has_ended(
    engine: Engine, store: FakeStore
) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    store.hold_reads = True
    load(engine, Request("s", PROMPT), OTHERS)
    engine.begin(StepOutput())
    engine.worker.start_loads()
    assert engine.end() == (set(), set())
    engine.begin(StepOutput())
    assert engine.end() == (set(), set())
    batches(engine)[-1].run()
    engine.begin(StepOutput())
    assert engine.end() == ({"s"}, set())
    engine.begin(StepOutput())
    assert engine.end() == (set(), set())


@pytest.mark.parametrize("code", [Code.MISSING, Code.CORRUPT, Code.TIMEOUT])
def test_a_block_that_does_not_come_is_reported_with_its_request(
    engine: Engine, store: FakeStore, code: Code
) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    key = next(key for (_, key), (_, depth) in store.chains.items() if depth == 3)
    store.read_codes[key] = code
    load(engine, Request("s", PROMPT), OTHERS)
    engine.begin(StepOutput())
    engine.worker.start_loads()
    assert engine.end() == ({"s"}, {OTHERS[3]})
    totals = engine.worker.counters.totals
    assert (totals["blocks_load_failed"], totals["blocks_loaded"]) == (1, 4)
    assert totals["blocks_load_corrupt"] == (code == Code.CORRUPT)


def test_a_store_that_dies_between_lookup_and_load_is_a_failed_load(
    engine: Engine, store: FakeStore
) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    load(engine, Request("s", PROMPT), OTHERS)
    store.is_dead = True
    engine.begin(StepOutput())
    engine.worker.start_loads()
    assert engine.end() == ({"s"}, set(OTHERS[:5]))


@pytest.fixture(params=["cancelled", "stubborn"])
def hanging(
    request: pytest.FixtureRequest, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Whether batches that hang go on even when they are cancelled."""
    monkeypatch.setattr(fencing, "_CANCEL_S", 0.05)
    store.is_stubborn = request.param == "stubborn"
    return store.is_stubborn


def test_a_load_that_hangs_is_ended_before_its_blocks_are_given_up(
    engine: Engine, store: FakeStore, hanging: bool
) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    store.hold_reads = True
    load(engine, Request("s", PROMPT), OTHERS)
    engine.begin(StepOutput())
    engine.worker.start_loads()
    client = engine.worker._link.client
    assert engine.end() == (set(), set())
    engine.clock.now_s += 31
    assert engine.end() == ({"s"}, set(OTHERS[:5]))
    assert client.batches[-1].done  # type: ignore[union-attr]
    # Only what cannot be ended alone costs the link.
    assert client.is_closed == hanging  # type: ignore[union-attr]
    engine.wait_connected()


def layer_keys(store: FakeStore, depth: int) -> bytes:
    return next(key for (_, key), (_, at) in store.chains.items() if at == depth)


def test_a_failed_layer_is_reported_and_what_builds_on_it_is_not_saved(
    store: FakeStore, device: str
) -> None:
    engine = Engine(store, device=device, load_mode="layerwise")
    engine.prefill(Request("r", PROMPT[:17]), BLOCKS)
    store.read_codes[layer_keys(store, 2)] = Code.MISSING
    request = Request("s", PROMPT)
    load(engine, request, OTHERS)
    engine.begin(engine.admitted(request, OTHERS, 16, 5))
    engine.worker.start_loads()
    engine.forward(request, OTHERS)
    assert engine.end() == (set(), {OTHERS[2]})
    # Block 4 was computed from bytes that never came: its name must not be given to it.
    assert len(store.sealed) == 4
    assert not store.staged
    assert engine.worker.is_saving
    engine.close()


def test_a_last_layer_that_fails_keeps_the_value_from_being_sealed(
    store: FakeStore, device: str
) -> None:
    engine = Engine(store, device=device, load_mode="layerwise")
    engine.prefill(Request("r", PROMPT[:17]), BLOCKS)
    store.hold_reads = True
    request = Request("s", PROMPT)
    load(engine, request, OTHERS)
    engine.begin(engine.admitted(request, OTHERS, 16, 5))
    engine.worker.start_loads()
    reads = batches(engine)[-LAYERS:]
    for layer, name in enumerate(NAMES):
        if layer == LAYERS - 1:
            store.read_codes[layer_keys(store, 0)] = Code.CORRUPT
        reads[layer].run()
        engine.worker.wait_layer(name)
        engine.worker.save_layer(name)
    assert engine.end() == (set(), {OTHERS[0]})
    assert engine.worker.counters.totals["blocks_load_corrupt"] == 1
    assert len(store.sealed) == 4
    assert not store.staged
    engine.close()


def test_a_layer_waits_for_its_own_batch_only(store: FakeStore, device: str) -> None:
    engine = Engine(store, device=device, load_mode="layerwise")
    engine.prefill(Request("r", PROMPT), BLOCKS)
    store.hold_reads = True
    request = Request("s", PROMPT)
    load(engine, request, OTHERS)
    engine.begin(engine.admitted(request, OTHERS, 20, 1))
    engine.worker.start_loads()
    reads = batches(engine)[-LAYERS:]
    reads[0].run()
    engine.worker.wait_layer(NAMES[0])  # returns though the others are held
    assert not reads[1].done
    for batch in reads:
        batch.run()
    engine.end()
    engine.close()


def test_a_step_with_layers_that_hang_goes_on_once_they_cannot_arrive(
    store: FakeStore, device: str, hanging: bool
) -> None:
    engine = Engine(store, device=device, load_mode="layerwise", load_timeout_s=0.05)
    engine.prefill(Request("r", PROMPT), BLOCKS)
    store.hold_reads = True
    request = Request("s", PROMPT)
    load(engine, request, OTHERS)
    client = engine.worker._link.client
    engine.begin(engine.admitted(request, OTHERS, 20, 1))
    engine.worker.start_loads()
    engine.worker.wait_layer(NAMES[0])
    assert all(batch.done for batch in client.batches)  # type: ignore[union-attr]
    assert client.is_closed == hanging  # type: ignore[union-attr]
    assert engine.end()[1] == set(OTHERS[:5])
    engine.close()


def test_a_save_that_hangs_is_ended_before_the_step_returns(
    store: FakeStore, device: str, hanging: bool
) -> None:
    engine = Engine(store, device=device, save_timeout_s=0.05)
    store.hold_writes = True
    client = engine.worker._link.client
    engine.prefill(Request("r", PROMPT), BLOCKS)
    assert all(batch.done for batch in client.batches)  # type: ignore[union-attr]
    assert client.is_closed == hanging  # type: ignore[union-attr]
    assert not store.staged
    assert not store.sealed
    assert engine.worker.counters.totals["blocks_save_failed"] == 5
    engine.close()


def test_after_two_lost_steps_saves_pause_and_then_are_tried_again(
    engine: Engine, store: FakeStore
) -> None:
    store.write_code = Code.TIMEOUT
    for name in ("a", "b", "c"):
        engine.prefill(Request(name, PROMPT), BLOCKS)
    totals = engine.worker.counters.totals
    assert (totals["blocks_save_failed"], totals["blocks_save_skipped"]) == (10, 5)
    store.write_code = None
    engine.clock.now_s += 6
    engine.prefill(Request("d", PROMPT), BLOCKS)
    assert totals["blocks_saved"] == 5


@pytest.mark.parametrize(
    ("code", "withdraws"),
    [
        (Code.DISCONNECTED, False),
        (Code.TIMEOUT, False),
        (Code.CLOSED, False),
        (Code.OUT_OF_MEMORY, True),
        (Code.ABORTED, True),
    ],
)
def test_nothing_is_withdrawn_over_a_link_that_is_lost(
    engine: Engine, store: FakeStore, code: Code, withdraws: bool
) -> None:
    """Its connection has ended with all that it had staged; a new one would be waited for."""
    store.write_code = code
    engine.prefill(Request("r", PROMPT), BLOCKS)
    assert [entry for entry in store.log if entry[0] == "abort"] == [("abort", 5, 0)] * withdraws


@pytest.mark.parametrize("code", [Code.OUT_OF_MEMORY, Code.QUOTA_EXCEEDED])
def test_a_full_store_is_no_reason_to_pause(engine: Engine, store: FakeStore, code: Code) -> None:
    store.write_code = code
    for name in ("a", "b", "c"):
        engine.prefill(Request(name, PROMPT), BLOCKS)
    assert engine.worker.counters.totals["blocks_save_failed"] == 15
    assert engine.worker.is_saving


def test_who_only_reads_loads_and_saves_nothing(engine: Engine, store: FakeStore) -> None:
    engine.prefill(Request("w", PROMPT[:9]), BLOCKS)
    store.is_read_only = True
    reader = Engine(store)
    try:
        store.log.clear()
        reader.prefill(Request("r", PROMPT), BLOCKS)
        assert not any(entry[0] in ("write", "abort") for entry in store.log)
        assert reader.worker.counters.totals["blocks_save_skipped"] == 5
        assert reader.worker.counters.totals["blocks_save_failed"] == 0
        assert not reader.worker.is_saving
        assert reader.match(Request("s", PROMPT))[0] == 8
    finally:
        reader.close()


def test_the_gate_opens_for_one_try_and_closes_for_longer() -> None:
    now = [0.0]
    gate = SaveGate(lambda: now[0])
    gate.failed()
    assert gate.is_open
    gate.failed()
    assert not gate.is_open
    now[0] = 5.1
    assert gate.is_open
    gate.failed()
    now[0] = 10.2
    assert not gate.is_open
    now[0] = 15.2
    assert gate.is_open
    gate.succeeded()
    gate.failed()
    assert gate.is_open


def test_each_rank_saves_and_loads_its_own_heads(store: FakeStore) -> None:
    engine = Engine(store, ranks=2, kv_heads=4)
    engine.prefill(Request("r", PROMPT), BLOCKS)
    assert len(store.sealed) == 10
    engine.wipe()
    request = Request("s", PROMPT)
    load(engine, request, OTHERS)
    engine.begin(StepOutput())
    for worker in engine.workers:
        worker.start_loads()
    assert engine.end() == ({"s"}, set())
    assert engine.holds(request, OTHERS, 5)
    engine.close()


def test_a_block_that_one_rank_lacks_is_no_hit(store: FakeStore) -> None:
    engine = Engine(store, ranks=2, kv_heads=4)
    request = Request("r", PROMPT)
    engine.prefill(request, BLOCKS)
    third = engine.scheduler._plans["r"].names(2, 3)[0]
    del store.sealed["w", block_key(third, HeadRange(2, 4, 4))]
    assert engine.match(Request("s", PROMPT)) == (8, True)
    engine.close()


def test_ranks_with_the_same_heads_save_once_and_all_load(store: FakeStore) -> None:
    engine = Engine(store, ranks=4, kv_heads=2)
    assert [worker._saves for worker in engine.workers] == [True, False, True, False]
    engine.prefill(Request("r", PROMPT), BLOCKS)
    assert len(store.sealed) == 10
    assert engine.match(Request("s", PROMPT)) == (20, True)
    engine.close()


def test_the_parts_of_a_block_are_all_heads_of_all_stages() -> None:
    parts = BlockParts(tuple(head_ranges(2, 4)), stages=2)
    keys = parts.keys([b"{t}one", b"{t}two"])
    assert len(parts) == 4
    assert [key.removeprefix(b"{t}one") for key in keys[:4]] == [
        b"/h0-2.4/g0/p0.2",
        b"/h2-4.4/g0/p0.2",
        b"/h0-2.4/g0/p1.2",
        b"/h2-4.4/g0/p1.2",
    ]
    assert len(set(keys)) == 8


@pytest.fixture
def _pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers 0 and 1 go together."""
    for name in ("save_pieces", "load_pieces"):
        monkeypatch.setattr(CacheMap, name, lambda *_: [range(2), range(2, 3)])


@pytest.mark.usefixtures("_pieces")
def test_a_piece_is_on_its_way_before_the_next_one_computes(
    engine: Engine, store: FakeStore
) -> None:
    request = Request("r", PROMPT)
    engine.begin(engine.admitted(request, BLOCKS, 0, 21))
    filled = []
    for layer in range(LAYERS):
        engine.compute(request, BLOCKS, layer, 21)
        engine.worker.save_layer(NAMES[layer])
        filled.append([sum(n for _, n in value.filled) for value in store.staged.values()])
    assert filled == [[], [2 * RUN_BYTES] * 5, []]
    assert len(store.sealed) == 5
    engine.end()
    writes = [entry for entry in store.log if entry[0] == "write"]
    assert writes == [("write", 5, 0), ("write", 5, 2 * RUN_BYTES)]
    assert engine.worker.counters.totals["blocks_saved"] == 5


@pytest.mark.usefixtures("_pieces")
def test_a_piece_with_a_layer_whose_hook_was_not_called_goes_at_the_end(
    engine: Engine, store: FakeStore
) -> None:
    request = Request("r", PROMPT)
    engine.begin(engine.admitted(request, BLOCKS, 0, 21))
    for layer in range(LAYERS):
        engine.compute(request, BLOCKS, layer, 21)
    for layer in (2, 1, 1, 2):
        engine.worker.save_layer(NAMES[layer])
    engine.end()
    writes = [entry for entry in store.log if entry[0] == "write"]
    assert writes == [("write", 5, 2 * RUN_BYTES), ("write", 5, 0)]
    assert len(store.sealed) == 5


SHAPES = [
    (layers, unit_layers(layers, layer_bytes, 512 << 10), layer_bytes)
    for layers in (1, 4, 7, 8, 30, 32, 61, 80)
    for layer_bytes in (64, 8 << 10, 64 << 10, 196_608, 4 << 20)
]


@pytest.mark.parametrize(("layers", "unit", "layer_bytes"), SHAPES)
def test_pieces_hold_all_layers_once_and_stay_small_enough_to_overlap(
    layers: int, unit: int, layer_bytes: int
) -> None:
    for values in (1, 5, 31, 511, 512, 999, 100_000):
        for cut in (save_pieces, load_pieces):
            pieces = cut(layers, unit, values * layer_bytes, 4 << 20)
            assert [layer for piece in pieces for layer in piece] == list(range(layers))
            assert len(pieces) >= min(layers, 8)
    assert len(save_pieces(layers, unit, 100 << 20, 4 << 20)) == layers  # none waits for another


@pytest.mark.parametrize(("layers", "unit", "layer_bytes"), SHAPES)
def test_a_large_last_layer_is_saved_alone(layers: int, unit: int, layer_bytes: int) -> None:
    for step_bytes in (1 << 20, (4 << 20) - 1, 4 << 20):
        assert save_pieces(layers, unit, step_bytes, 4 << 20)[-1] == range(layers - 1, layers)
    small = save_pieces(layers, unit, (1 << 20) - 1, 4 << 20)
    assert len({len(piece) for piece in small if piece.stop < layers}) <= 1
    assert len(small) <= -(-layers // len(small[0]))


@pytest.mark.parametrize(("layers", "unit", "layer_bytes"), SHAPES)
def test_what_is_read_is_made_up_of_what_was_written_whatever_the_steps_had(
    layers: int, unit: int, layer_bytes: int
) -> None:
    counts = (1, 5, 31, 255, 256, 511, 512, 999, 1000)
    for written in counts:
        ends = {piece.stop for piece in save_pieces(layers, unit, written * layer_bytes, 64 << 20)}
        for read in counts:
            pieces = load_pieces(layers, unit, read * layer_bytes, 64 << 20)
            assert {piece.stop for piece in pieces} <= ends, (written, read)


def test_an_engine_that_only_asks_looks_less_and_less_often(
    engine: Engine, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept_s: list[float] = []
    monkeypatch.setattr(
        "infinistore.connectors.vllm.worker.time", SimpleNamespace(sleep=slept_s.append)
    )
    store.hold_lookups = True
    request = Request("r", PROMPT)

    def idle_steps(count: int) -> list[float]:
        slept_s.clear()
        for _ in range(count):
            assert engine.match(request) == (None, False)
            engine.begin(StepOutput())
            engine.worker.take_finished()
        return [1e3 * taken for taken in slept_s]

    assert idle_steps(6) == [0.5, 1, 2, 4, 8, 8]
    other = Request("s", PROMPT[:4])  # a step that computes: nobody sleeps, and it begins anew
    engine.begin(StepOutput().new(other, [50], 0, 4))
    engine.worker.take_finished()
    assert idle_steps(2) == [0.5, 1]


@pytest.mark.usefixtures("_pieces")
def test_layers_are_loaded_in_pieces_that_are_waited_for_once(
    store: FakeStore, device: str
) -> None:
    engine = Engine(store, device=device, load_mode="layerwise")
    engine.prefill(Request("r", PROMPT), BLOCKS)
    engine.wipe()
    store.log.clear()
    store.hold_reads = True
    request = Request("s", PROMPT)
    load(engine, request, OTHERS)
    engine.begin(StepOutput())
    engine.worker.start_loads()
    assert store.log == [("read", 5, 0), ("read", 5, 2 * RUN_BYTES)]
    first, second = batches(engine)[-2:]
    first.run()
    engine.worker.wait_layer(NAMES[0])
    engine.worker.wait_layer(NAMES[1])  # layer 2 is still under way
    assert not second.done
    second.run()
    engine.worker.wait_layer(NAMES[2])
    assert engine.end() == (set(), set())
    assert engine.holds(request, OTHERS, 5)
    assert engine.worker.counters.totals["blocks_loaded"] == 5
    engine.close()
