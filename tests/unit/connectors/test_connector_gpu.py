"""A KV cache on a GPU: copies keep to the order of its stream, and nobody waits too early."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import LAYERS, Engine, Request, StepOutput
from fake_store import GPU, FakeStore

from infinistore.connectors import _streams
from infinistore.connectors.vllm import link as link_module
from infinistore.connectors.vllm.identity import check_load_mode, layout_identity
from infinistore.connectors.vllm.link import StoreLink
from infinistore.connectors.vllm.settings import ConnectorSettings
from infinistore.errors import Code, ConfigError, DisconnectedError, InfiniStoreError, SetupError
from waiting import until

PROMPT = list(range(10, 31))
BLOCKS = [7, 3, 9, 12, 40, 41]
OTHERS = [20, 21, 22, 23, 24, 25]


@pytest.fixture
def engine(store: FakeStore) -> Iterator[Engine]:
    """An engine on a GPU."""
    made = Engine(store, device=f"cuda:{GPU}")
    yield made
    made.close()


def test_saves_are_sent_while_the_gpu_has_not_begun(engine: Engine, store: FakeStore) -> None:
    store.hold_writes = True
    request = Request("r", PROMPT)
    engine.begin(engine.admitted(request, BLOCKS, 0, 21))
    engine.forward(request, BLOCKS)
    assert len(store.clients[1].batches) == LAYERS
    assert store.gpu.ran == 0
    for batch in store.clients[1].batches:
        batch.run()
    engine.end()
    engine.wipe()
    assert engine.worker.counters.totals["blocks_saved"] == 5


def test_a_piece_waits_for_its_own_layer_and_no_later_one(engine: Engine, store: FakeStore) -> None:
    store.hold_writes = True
    request = Request("r", PROMPT)
    engine.begin(engine.admitted(request, BLOCKS, 0, 21))
    engine.forward(request, BLOCKS)
    for layer, batch in enumerate(store.clients[1].batches):
        batch.run()
        assert store.gpu.ran == layer + 1
    engine.end()


def test_the_time_that_the_model_takes_is_none_of_the_stores(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(store, device=f"cuda:{GPU}", save_timeout_s=0.05)
    store.hold_writes = True

    def compute(device: int) -> None:
        time.sleep(0.1)
        store.gpu.synchronize(device)
        for batch in store.clients[1].batches:
            batch.run()

    monkeypatch.setattr(_streams, "wait_computed", compute)
    engine.prefill(Request("r", PROMPT), BLOCKS)
    assert engine.worker.counters.totals["blocks_saved"] == 5
    engine.close()


@pytest.mark.parametrize("mode", ["async", "layerwise"])
def test_what_was_launched_before_a_load_does_not_overwrite_it(store: FakeStore, mode: str) -> None:
    engine = Engine(store, device=f"cuda:{GPU}", load_mode=mode)
    engine.prefill(Request("r", PROMPT), BLOCKS)
    old = Request("old", [5] * 21)  # it has ended, and its last step runs still
    for layer in range(LAYERS):
        engine.compute(old, OTHERS, layer, 21)
    request = Request("s", PROMPT)
    tokens, _ = engine.match(request)
    engine.scheduler.after_allocation(request, [OTHERS], tokens or 0)
    engine.begin(StepOutput())
    engine.worker.start_loads()
    engine.end()
    assert engine.holds(request, OTHERS, 5)
    engine.close()


def test_a_layer_goes_alone_once_it_is_large(engine: Engine) -> None:
    cache = engine.worker._groups[0].cache
    large = (64 << 20) // cache.layer_bytes
    assert len(cache.save_pieces(large)) == len(cache.load_pieces(large)) == LAYERS


SETTINGS = ConnectorSettings()


def test_the_pool_is_prepared_when_the_caches_are_registered(
    engine: Engine, store: FakeStore
) -> None:
    assert store.gpu.prepared == [engine.worker._link.client]


def test_a_cpu_cache_prepares_nothing(store: FakeStore) -> None:
    engine = Engine(store)
    assert store.gpu.prepared == []
    engine.close()


def test_clients_that_come_later_are_prepared_before_they_are_used(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_RETRY_S", 0.01)
    store.is_dead = True
    link = StoreLink(SETTINGS, lambda: "ns")
    link.wait_tried(5)
    link.prepare_device(GPU)
    store.is_dead = False
    until(lambda: link.client is not None)
    assert store.gpu.prepared == [link.client]
    link.drop()
    until(lambda: link.client is not None)
    assert store.gpu.prepared == store.clients
    link.close()


@pytest.mark.parametrize("error", [DisconnectedError("gone"), SetupError("no driver")])
def test_a_gpu_that_cannot_be_prepared_ends_nothing(
    store: FakeStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: InfiniStoreError,
) -> None:
    def refuse(device: int) -> None:
        raise error

    link = StoreLink(SETTINGS, lambda: "ns")
    assert link.wait_tried(5)
    monkeypatch.setattr(store.clients[0], "prepare_device", refuse)
    link.prepare_device(GPU)
    assert link.client is store.clients[0]
    assert f"GPU {GPU} cannot use the store's memory directly" in caplog.text
    link.close()


def test_a_failed_copy_is_a_failed_load(engine: Engine, store: FakeStore) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    key = next(key for (_, key), (_, depth) in store.chains.items() if depth == 3)
    store.read_codes[key] = Code.CORRUPT
    request = Request("s", PROMPT)
    tokens, _ = engine.match(request)
    engine.scheduler.after_allocation(request, [OTHERS], tokens or 0)
    engine.begin(StepOutput())
    engine.worker.start_loads()
    assert engine.end() == ({"s"}, {OTHERS[3]})


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A vLLM for GPUs, as far as who an engine is depends on it."""
    current = SimpleNamespace(
        is_cpu=lambda: False, device_type="cuda", get_device_capability=lambda: (9, 0)
    )
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.26.0"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=current))
    monkeypatch.delenv("VLLM_KV_CACHE_LAYOUT", raising=False)
    return current


def config(**more: Any) -> Any:
    scheduler = SimpleNamespace(async_scheduling=more.pop("async_scheduling", False))
    return SimpleNamespace(scheduler_config=scheduler, **more)


@pytest.mark.usefixtures("platform")
def test_layers_are_not_loaded_under_a_vllm_that_cannot_take_a_step_back() -> None:
    layerwise = ConnectorSettings(load_mode="layerwise")
    unsafe = config(use_v2_model_runner=True, async_scheduling=True)
    with pytest.raises(ConfigError, match="MODEL_RUNNER=0 and --no-async-scheduling"):
        check_load_mode(unsafe, layerwise)
    with pytest.raises(ConfigError, match="Start it with --no-async-scheduling, or"):
        check_load_mode(config(async_scheduling=True), layerwise)
    check_load_mode(config(use_v2_model_runner=False), layerwise)
    check_load_mode(unsafe, ConnectorSettings())


def test_cpus_have_the_first_model_runner_alone(platform: SimpleNamespace) -> None:
    platform.is_cpu = lambda: True
    check_load_mode(config(use_v2_model_runner=True), ConnectorSettings(load_mode="layerwise"))


def test_what_may_pack_blocks_otherwise_is_in_the_layout(
    platform: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def layout(backend: Any = None, caches: Any = None, **kinds: Any) -> str:
        attention = SimpleNamespace(backend=backend, backend_per_kind=kinds)
        return layout_identity(SimpleNamespace(attention_config=attention), caches, 16)

    flash, other = SimpleNamespace(name="FLASH_ATTN"), SimpleNamespace(name="FLASHINFER")
    seen = [layout(), layout(flash), layout(other), layout(flash, full_attention=other)]
    seen.append(layout(caches=SimpleNamespace(kv_cache_layout=SimpleNamespace(name="LBHNC"))))
    assert seen[0] == "cuda.auto.sm90.vllm0.26.0.default"
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    seen.append(layout())
    platform.get_device_capability = lambda: None
    seen.append(layout())
    assert len(set(seen)) == len(seen)
    assert layout() == seen[-1]
