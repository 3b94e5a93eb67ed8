"""The vLLM connector over a real server, with a KV cache in a GPU's memory (of CUDA's double)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import infinistore
from fake_driver import DeviceArray, FakeDriver, pattern
from infinistore.connectors import _streams
from infinistore.connectors.vllm.identity import EngineShape
from infinistore.connectors.vllm.layout import LayerGroup
from infinistore.connectors.vllm.link import StoreLink
from infinistore.connectors.vllm.metadata import BlockLoad, BlockSaves, StepPlan
from infinistore.connectors.vllm.settings import ConnectorSettings
from infinistore.connectors.vllm.worker import WorkerSide
from infinistore.keys import block_key
from pool_damage import damage_pool
from server_process import ServerProcess

LAYERS, BLOCKS, RUN = 4, 8, 4096
NAMES = [f"model.layers.{n}.attn" for n in range(LAYERS)]
SHAPE = EngineShape(block_tokens=16, ranks=1, stages=1, kv_heads=2, groups=(LayerGroup((), 16),))


class DeviceTensor:
    """A layer's KV cache, as torch would show it."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array
        self.device = f"cuda:{array.device}"
        self.shape = array.shape

    def stride(self) -> tuple[int, ...]:
        return (self.shape[1], 1)

    def data_ptr(self) -> int:
        return self.array.address

    def element_size(self) -> int:
        return 1


class Engine:
    """One worker; its model's layers are kernels on one stream."""

    def __init__(self, driver: FakeDriver, arrays: Callable[..., Any], url: str, **extra: Any):
        self.driver = driver
        self.stream = driver.stream()
        settings = ConnectorSettings.of({"url": url, **extra})
        self.link = StoreLink(settings, lambda: "gpu")
        assert self.link.wait_tried(10)
        self.layers = [DeviceTensor(arrays((BLOCKS, RUN))) for _ in range(LAYERS)]
        self.worker = WorkerSide(settings, SHAPE, self.link)
        self.worker.register(dict(zip(NAMES, self.layers, strict=True)), BLOCKS)

    def begin(self, **plan: Any) -> None:
        self.worker.begin_step(StepPlan(**plan))

    def compute(self, layer: int, block_ids: list[int], seed: int) -> None:
        """Launches what fills the blocks: other bytes for each layer and block."""
        for index, block in enumerate(block_ids):
            address = self.layers[layer].data_ptr() + block * RUN
            self.driver.enqueue_fill(self.stream, address, RUN, seed + 100 * layer + index)

    def holds(self, block: int, seed: int) -> bool:
        """Whether a block has the bytes of all layers."""
        return all(
            np.array_equal(tensor.array.download()[block], pattern(RUN, seed + 100 * layer))
            for layer, tensor in enumerate(self.layers)
        )

    def end(self) -> tuple[set[str], set[int]]:
        self.worker.end_saves()
        return self.worker.take_finished(), self.worker.take_invalid()

    def close(self) -> None:
        self.driver.reset()
        self.worker.close()


@pytest.fixture
def engine(
    driver: FakeDriver,
    device_array: Callable[..., DeviceArray],
    server: ServerProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., Engine]]:
    """Makes engines."""
    made: list[Engine] = []

    def make(**extra: Any) -> Engine:
        made.append(Engine(driver, device_array, server.url, **extra))
        monkeypatch.setattr(_streams, "current_stream", lambda device: made[-1].stream)
        monkeypatch.setattr(
            _streams, "wait_computed", lambda device: driver.synchronize(made[-1].stream)
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


def saves(names: list[bytes], block_ids: list[int]) -> BlockSaves:
    parents = [b"", *names[:-1]]
    return BlockSaves(names, parents, list(range(len(names))), block_ids, by_layer=True)


def names_of(seed: int, count: int) -> list[bytes]:
    return [bytes([seed, n]) * 16 for n in range(count)]


def save(engine: Engine, seed: int, block_ids: list[int]) -> list[bytes]:
    """One prefill step."""
    names = names_of(seed, len(block_ids))
    engine.begin(saves=[saves(names, block_ids)])
    engine.worker.start_loads()
    for layer, name in enumerate(NAMES):
        engine.worker.wait_layer(name)
        engine.compute(layer, block_ids, seed)
        engine.worker.save_layer(name)
    assert engine.end() == (set(), set())
    return names


def stored(url: str, block: bytes) -> bytes:
    value = np.zeros(LAYERS * RUN, dtype=np.uint8)
    with infinistore.connect(url, namespace="gpu") as client:
        client.read_cache(value, [(block_key(block, SHAPE.heads(0)), 0)], value.size)
    return value.tobytes()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_is_saved_is_what_the_layers_computed(
    engine: Callable[..., Engine], server: ServerProcess, driver: FakeDriver, transport: str
) -> None:
    made = engine(transport=transport, tenant=transport)
    seed = 10 + len(transport) + (transport == "tcp")
    driver.delay_us(2000)  # the engine's thread is far ahead of its kernels
    names = save(made, seed, [6, 2, 5])
    for index, block in enumerate(names):
        layers = [pattern(RUN, seed + 100 * layer + index).tobytes() for layer in range(LAYERS)]
        assert stored(server.url, block) == b"".join(layers)
    assert made.worker.counters.totals["blocks_saved"] == 3


def test_the_engines_thread_does_not_wait_for_its_kernels(
    engine: Callable[..., Engine], driver: FakeDriver
) -> None:
    made = engine()
    ticket = driver.enqueue_wait(made.stream)  # a long computation
    names = names_of(30, 2)
    made.begin(saves=[saves(names, [0, 1])])
    for layer, name in enumerate(NAMES):
        made.compute(layer, [0, 1], 30)
        made.worker.save_layer(name)  # returns though nothing has begun
    assert made.worker.counters.totals["blocks_saved"] == 0
    driver.release(ticket)
    made.end()
    assert made.worker.counters.totals["blocks_saved"] == 2


@pytest.mark.parametrize("mode", ["async", "layerwise"])
def test_a_load_brings_the_bytes_after_what_was_launched_before(
    engine: Callable[..., Engine], driver: FakeDriver, mode: str
) -> None:
    made = engine(load_mode=mode)
    seed = 40 if mode == "async" else 50
    names = save(made, seed, [3, 4])
    driver.delay_us(2000)
    for layer in range(LAYERS):
        made.compute(layer, [7, 0], 90)  # of a request that has ended
    made.begin(loads=[BlockLoad("r", names, [7, 0])], is_idle=True)
    made.worker.start_loads()
    for name in NAMES:
        made.worker.wait_layer(name)
    finished, invalid = made.end()
    while mode == "async" and not finished:
        finished, invalid = made.end()
    assert (finished, invalid) == ({"r"} if mode == "async" else set(), set())
    assert made.holds(7, seed)
    assert made.holds(0, seed + 1)
    assert made.worker.counters.totals["blocks_loaded"] == 2


def test_a_damaged_block_is_a_failed_load(
    engine: Callable[..., Engine], server: ServerProcess
) -> None:
    made = engine(load_mode="layerwise")
    names = save(made, 60, [1, 2])
    damage_pool(server.pid, pattern(RUN, 61).tobytes())  # the second block's first layer
    made.begin(loads=[BlockLoad("r", names, [5, 6])])
    made.worker.start_loads()
    assert made.end() == (set(), {6})
    assert made.worker.counters.totals["blocks_load_corrupt"] == 1
    assert made.holds(5, 60)
