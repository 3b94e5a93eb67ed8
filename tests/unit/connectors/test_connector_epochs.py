"""Weights that change in a running engine: nothing of the old ones is loaded, none mixed in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import LAYERS, Engine, Request, StepOutput
from fake_store import FakeStore

from infinistore.connectors.vllm import epochs
from infinistore.connectors.vllm.settings import ConnectorSettings
from infinistore.errors import InfiniStoreError
from infinistore.keys import Namespace

PROMPT = list(range(10, 31))  # 21 tokens: 5 whole blocks and one token
BLOCKS = [7, 3, 9, 12, 40, 41]
OTHERS = [20, 21, 22, 23, 24, 25]
NAMES = [f"model.layers.{n}.attn" for n in range(LAYERS)]


def namespaces(store: FakeStore) -> dict[str, int]:
    """How many keys each namespace has."""
    counts: dict[str, int] = {}
    for space, _ in store.sealed:
        counts[space] = counts.get(space, 0) + 1
    return counts


def step(engine: Engine, output: StepOutput | None = None) -> tuple[set[str], set[int]]:
    """One step in which nothing is computed."""
    engine.begin(output or StepOutput())
    for worker in engine.workers:
        worker.start_loads()
    return engine.end()


def tell(engine: Engine, epoch: str | None, *, scheduler: bool = True) -> None:
    """What set_weights_epoch does where both sides are in one process, or the workers alone."""
    for side in [*([engine.scheduler] if scheduler else []), *engine.workers]:
        side.set_epoch(epoch)  # type: ignore[attr-defined]


def test_a_reset_hides_old_blocks_and_deletes_nothing(engine: Engine, store: FakeStore) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    engine.scheduler.on_finished(Request("r", PROMPT))
    assert engine.match(Request("before", PROMPT)) == (20, True)
    engine.scheduler.reset()
    assert engine.match(Request("after", PROMPT)) == (0, False)
    assert namespaces(store) == {"w": 5}
    # What is computed now is saved apart, and found again.
    engine.prefill(Request("s", PROMPT), BLOCKS)
    step(engine)
    assert engine.match(Request("t", PROMPT)) == (20, True)
    private = engine.scheduler.epoch
    assert namespaces(store) == {"w": 5, f"w/epoch-{private}": 5}
    assert {link.namespace for link in engine.links} == {f"w/epoch-{private}"}
    # Another engine, which has the old weights, keeps its blocks.
    other = Engine(store)
    assert other.match(Request("u", PROMPT)) == (20, True)
    other.close()


def test_a_reset_may_be_told_to_keep_the_epoch(store: FakeStore) -> None:
    engine = Engine(store, epoch_on_reset="keep")
    engine.prefill(Request("r", PROMPT), BLOCKS)
    engine.scheduler.reset()
    assert engine.match(Request("s", PROMPT)) == (20, True)
    engine.close()


def test_a_load_in_flight_is_ended_and_reported_as_failed(engine: Engine, store: FakeStore) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    engine.wipe()
    loading = Request("s", PROMPT)
    tokens, _ = engine.match(loading)
    engine.scheduler.after_allocation(loading, [OTHERS], tokens or 0)
    store.hold_reads = True
    assert step(engine) == (set(), set())
    engine.scheduler.reset()
    assert step(engine) == ({"s"}, set(OTHERS[:5]))
    assert not engine.holds(loading, OTHERS, 1)


def test_a_load_that_was_over_but_not_reported_is_not_used(
    engine: Engine, store: FakeStore
) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    loading = Request("s", PROMPT)
    tokens, _ = engine.match(loading)
    engine.scheduler.after_allocation(loading, [OTHERS], tokens or 0)
    engine.begin(StepOutput())
    engine.worker.start_loads()  # its batch is done; the engine hears of it after the reset
    engine.scheduler.reset()
    engine.begin(StepOutput())
    assert engine.end() == ({"s"}, set(OTHERS[:5]))


def test_a_load_that_was_planned_before_finds_nothing(engine: Engine, store: FakeStore) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    loading = Request("s", PROMPT)
    tokens, _ = engine.match(loading)
    engine.scheduler.after_allocation(loading, [OTHERS], tokens or 0)
    engine.scheduler.reset()
    assert step(engine) == ({"s"}, set(OTHERS[:5]))


def test_engines_of_one_name_share_and_of_two_do_not(store: FakeStore) -> None:
    first, second = Engine(store), Engine(store, weights_epoch="step-7")
    tell(first, "step-7")
    first.scheduler.reset()  # after its name: it belongs to it
    first.prefill(Request("r", PROMPT), BLOCKS)
    assert namespaces(store) == {"w/epoch-step-7": 5}
    assert second.match(Request("s", PROMPT)) == (20, True)
    tell(second, "step-8")
    assert second.match(Request("t", PROMPT)) == (0, False)
    tell(second, "step-7")  # back to weights that were there before
    assert second.match(Request("u", PROMPT)) == (20, True)
    first.close()
    second.close()


def test_a_name_after_a_reset_is_given_to_what_was_computed_since(
    engine: Engine, store: FakeStore
) -> None:
    engine.scheduler.reset()
    engine.prefill(Request("r", PROMPT[:9]), BLOCKS)
    tell(engine, "step-7")
    request = Request("r", PROMPT[:9])
    request.all_token_ids += PROMPT[9:]
    engine.scheduler._plans["r"].request = request
    engine.begin(StepOutput().running(request, BLOCKS[3:], 9, 12))
    engine.forward(request, BLOCKS)
    engine.end()
    assert namespaces(store)["w/epoch-step-7"] == 3  # those behind the two of before


def test_weights_under_change_are_neither_saved_nor_loaded(
    engine: Engine, store: FakeStore
) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    loading = Request("s", PROMPT)
    tokens, _ = engine.match(loading)
    engine.scheduler.after_allocation(loading, [OTHERS], tokens or 0)
    store.hold_reads = True
    step(engine)
    tell(engine, None)
    assert step(engine) == ({"s"}, set(OTHERS[:5]))
    assert engine.match(Request("t", PROMPT)) == (0, False)
    engine.prefill(Request("u", PROMPT[::-1]), OTHERS)
    assert namespaces(store) == {"w": 5}
    engine.scheduler.reset()
    engine.prefill(Request("v", PROMPT[::-1]), OTHERS)
    assert namespaces(store) == {"w": 5}  # a reset alone does not say that they are whole
    tell(engine, "step-2")
    step(engine)
    engine.prefill(Request("x", PROMPT[::-1]), OTHERS)
    assert namespaces(store) == {"w": 5, "w/epoch-step-2": 5}


@pytest.mark.parametrize("ranks", [1, 2])
def test_workers_in_other_processes_tell_the_scheduler(store: FakeStore, ranks: int) -> None:
    engine = Engine(store, ranks=ranks)
    engine.prefill(Request("r", PROMPT), BLOCKS)
    before = namespaces(store)
    loading = Request("s", PROMPT)
    tokens, _ = engine.match(loading)  # the scheduler knows nothing yet
    assert tokens == 20
    engine.scheduler.after_allocation(loading, [OTHERS], tokens or 0)
    tell(engine, "step-7", scheduler=False)
    assert step(engine) == ({"s"}, set(OTHERS[:5]))  # the workers refuse
    assert engine.scheduler.epoch == "step-7"
    step(engine)
    assert {link.namespace for link in engine.links} == {"w/epoch-step-7"}
    engine.prefill(Request("t", PROMPT), BLOCKS)
    assert namespaces(store) == before | {"w/epoch-step-7": 5 * ranks}
    engine.close()


def test_what_stands_on_old_blocks_is_not_saved(engine: Engine, store: FakeStore) -> None:
    running = Request("r", PROMPT[:9])
    engine.prefill(running, BLOCKS)  # two blocks by the old weights
    assert namespaces(store) == {"w": 2}
    engine.scheduler.reset()
    running.all_token_ids += PROMPT[9:]
    engine.begin(StepOutput().running(running, BLOCKS[3:], 9, 12))
    engine.forward(running, BLOCKS)
    engine.end()
    assert namespaces(store) == {"w": 2}
    # Nor what begins with blocks of the engine's own cache, which that request kept from its reset.
    engine.prefill(Request("s", PROMPT), BLOCKS, computed=8)
    assert namespaces(store) == {"w": 2}
    # What is computed from its first token on is.
    engine.prefill(Request("t", PROMPT), OTHERS)
    assert namespaces(store) == {"w": 2, f"w/epoch-{engine.scheduler.epoch}": 5}


def test_a_request_that_is_computed_anew_is_saved(engine: Engine, store: FakeStore) -> None:
    running = Request("r", PROMPT)
    engine.prefill(running, BLOCKS)
    engine.scheduler.reset()  # the engine preempts all that runs, and empties its cache
    engine.match(running)
    engine.scheduler.after_allocation(running, [OTHERS], 0)
    output = StepOutput(preempted_req_ids={"r"}).running(running, OTHERS, 0, 21, resumed=True)
    engine.begin(output)
    engine.forward(running, OTHERS)
    engine.end()
    private = f"w/epoch-{engine.scheduler.epoch}"
    assert namespaces(store) == {"w": 5, private: 5}
    # Its cache is of the new weights: who begins with its blocks is saved, too.
    longer = Request("s", [*PROMPT, 1, 2, 3, 4])
    engine.prefill(longer, OTHERS, computed=20)
    assert namespaces(store)[private] == 6


def test_names_are_checked_and_come_from_settings_or_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(epochs.VARIABLE, "step-1")
    assert ConnectorSettings.of({}).weights_epoch == "step-1"
    assert ConnectorSettings.of({"weights_epoch": "step-2"}).weights_epoch == "step-2"
    for name in ("", "a b", "a/b", "x" * 65, 7):
        with pytest.raises(InfiniStoreError, match="weights epoch"):
            epochs.set_weights_epoch(name)  # type: ignore[arg-type]
    with pytest.raises(InfiniStoreError, match="epoch"):
        ConnectorSettings.of({"weights_epoch": "a b"})
    with pytest.raises(InfiniStoreError, match="epoch_on_reset"):
        ConnectorSettings.of({"epoch_on_reset": "never"})


def test_an_epoch_stands_behind_the_namespace() -> None:
    space = Namespace(
        weights="0f3a",
        dtype="bfloat16",
        cache_dtype="auto",
        layout="cpu.vec.HND",
        block_tokens=32,
        layers=4,
        kv_heads=2,
        head_size=32,
    )
    assert epochs.namespace_in(str(space), "") == str(space)
    assert epochs.namespace_in(str(space), "step:1+a") == f"{space}/epoch-step:1+a"


def test_every_connector_of_the_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    connectors = [SimpleNamespace(set_weights_epoch=heard.append) for _ in range(2)]
    monkeypatch.setattr(epochs, "_connectors", connectors)
    assert epochs.WorkerExtension().set_weights_epoch("step-3") == 2
    assert epochs.set_weights_epoch(None) == 2
    assert heard == ["step-3", "step-3", None, None]
