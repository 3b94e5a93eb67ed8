"""Where a block's bytes lie: addresses from tensors as vLLM makes them, and what is refused."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from infinistore.connectors.vllm.layout import LayerGroup, in_order, layer_groups, map_caches
from infinistore.errors import ConfigError

torch = pytest.importorskip("torch")


class FullAttentionSpec:
    block_size = 32


class MLAAttentionSpec(FullAttentionSpec):
    pass


class SlidingWindowSpec:
    sliding_window = 80

    def __init__(self, block_size: int = 32, extra_retained_tokens: int = 0) -> None:
        self.block_size = block_size
        self.extra_retained_tokens = extra_retained_tokens


class MambaSpec:
    block_size = 32


class UniformTypeKVCacheSpecs:
    block_size = 32

    def __init__(self, **specs: Any) -> None:
        self.kv_cache_specs = specs


def config(*specs: Any) -> Any:
    groups = [SimpleNamespace(kv_cache_spec=spec, layer_names=["a", "b"]) for spec in specs]
    return SimpleNamespace(kv_cache_groups=groups, num_blocks=8)


def storage(layers: int, blocks: int, *shape: int) -> Any:
    return torch.arange(layers * blocks * int(np.prod(shape)), dtype=torch.float32).reshape(
        layers, blocks, *shape
    )


def read(addresses: Any, size: int) -> bytes:
    return b"".join(ctypes.string_at(int(a), size) for a in addresses)


def test_a_value_is_every_layers_run_of_a_block() -> None:
    memory = storage(3, 8, 2, 32, 64)  # as on CPUs: layer, block, head, token, content
    cache = map_caches({f"layers.{n}.attn": memory[n] for n in range(3)}, 8)
    assert cache.segment_bytes == 2 * 32 * 64 * 4
    assert cache.value_bytes == 3 * cache.layer_bytes
    value = read(cache.addresses([5])[0], cache.segment_bytes)
    assert value == b"".join(memory[n, 5].numpy().tobytes() for n in range(3))
    layer = read(cache.addresses([5, 2])[:, cache.columns(range(1, 2))][:, 0], cache.segment_bytes)
    assert layer == memory[1, 5].numpy().tobytes() + memory[1, 2].numpy().tobytes()


def test_a_layer_with_keys_and_values_apart_has_two_runs() -> None:
    memory = storage(1, 2, 8, 32, 4)[0]  # K|V, block, token, content
    cache = map_caches({"layers.0": memory}, 8)
    assert cache.planes == 2
    value = read(cache.addresses([3])[0], cache.segment_bytes)
    assert value == memory[0, 3].numpy().tobytes() + memory[1, 3].numpy().tobytes()


def test_blocks_in_another_order_of_dimensions_are_still_runs() -> None:
    memory = storage(1, 8, 32, 2, 64)[0].permute(0, 2, 1, 3)
    cache = map_caches({"layers.0": memory}, 8)
    assert cache.segment_bytes == 32 * 2 * 64 * 4


def test_block_outermost_memory_is_addressed_by_its_strides() -> None:
    memory = storage(8, 3, 2, 16)  # block, layer, ...
    cache = map_caches({f"layers.{n}": memory[:, n] for n in range(3)}, 8)
    value = read(cache.addresses([6])[0], cache.segment_bytes)
    assert value == memory[6].numpy().tobytes()


def test_a_kernel_with_smaller_blocks_gives_whole_engine_blocks() -> None:
    memory = storage(1, 32, 2, 16)[0]  # 8 blocks of the engine's, each four of the kernel's
    cache = map_caches({"layers.0": memory}, 8)
    value = read(cache.addresses([3])[0], cache.segment_bytes)
    assert value == memory[12:16].numpy().tobytes()


def test_memory_that_is_not_in_runs_is_refused() -> None:
    memory = storage(1, 8, 2, 64)[0][:, :, ::2]
    with pytest.raises(ConfigError, match="not one run of bytes"):
        map_caches({"layers.0": memory}, 8)


class OnDevice:
    """A tensor that says it is elsewhere; its memory is the host's, so that it can be looked at."""

    def __init__(self, tensor: Any, device: str) -> None:
        self._tensor = tensor
        self.device = torch.device(device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)


def test_layers_on_one_gpu_are_addressed_there() -> None:
    memory = storage(2, 8, 16, 2, 64)
    cache = map_caches({f"layers.{n}": OnDevice(memory[n], "cuda:3") for n in range(2)}, 8)
    assert cache.device == 3
    value = read(cache.addresses([5])[0], cache.segment_bytes)
    assert value == memory[0, 5].numpy().tobytes() + memory[1, 5].numpy().tobytes()
    assert map_caches({"layers.0": memory[0]}, 8).device is None


def test_flash_attention_and_mla_layouts_of_gpus_are_runs() -> None:
    """(2, blocks, tokens, heads, size), also with heads before tokens in memory; (blocks, tokens,
    size)."""
    apart = storage(1, 2, 8, 16, 2, 64)[0]
    for tensor in (apart, apart.permute(0, 1, 3, 2, 4)):
        cache = map_caches({"layers.0": OnDevice(tensor, "cuda:0")}, 8)
        assert (cache.planes, cache.segment_bytes) == (2, 16 * 2 * 64 * 4)
        value = read(cache.addresses([5])[0], cache.segment_bytes)
        assert value == apart[0, 5].numpy().tobytes() + apart[1, 5].numpy().tobytes()
    latent = storage(1, 8, 64, 576)[0]
    cache = map_caches({"layers.0": OnDevice(latent, "cuda:0")}, 8)
    assert (cache.planes, cache.segment_bytes) == (1, 64 * 576 * 4)


@pytest.mark.parametrize("device", ["xpu:0", "meta"])
def test_a_device_that_we_cannot_read_is_refused(device: str) -> None:
    tensor = OnDevice(storage(1, 8, 4)[0], device)
    with pytest.raises(ConfigError, match=rf"layers.0 is on {device}; .*on CUDA GPUs"):
        map_caches({"layers.0": tensor}, 8)


def test_layers_on_several_devices_are_refused() -> None:
    memory = storage(3, 8, 4)
    caches = {f"l.{n}": OnDevice(memory[n], f"cuda:{n // 2}") for n in range(3)}
    with pytest.raises(ConfigError, match=r"2 devices \(.*l.0 on cuda:0.*\)") as refusal:
        map_caches(caches, 8)
    assert "l.2 on cuda:1" in str(refusal.value)
    with pytest.raises(ConfigError, match="2 devices"):
        map_caches({"l.0": memory[0], "l.1": caches["l.1"]}, 8)


def test_layers_of_unlike_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="differ in bytes"):
        map_caches({"l.0": storage(1, 8, 4)[0], "l.1": storage(1, 8, 8)[0]}, 8)


def test_layers_that_share_memory_are_saved_once() -> None:
    memory = storage(2, 8, 4)
    cache = map_caches({"l.0": memory[0], "l.1": memory[1], "l.2": memory[1]}, 8)
    assert list(cache.layers) == ["l.0", "l.1"]


def test_a_block_outside_the_cache_is_an_error() -> None:
    cache = map_caches({"l.0": storage(1, 8, 4)[0]}, 8)
    with pytest.raises(IndexError, match="block 8 of a KV cache of 8"):
        cache.addresses([8])


def test_layers_are_in_numeric_order() -> None:
    assert in_order(["m.10.a", "m.2.a", "m.0.a"]) == ["m.0.a", "m.2.a", "m.10.a"]


def test_full_attention_mla_and_windows_are_taken() -> None:
    for spec in (FullAttentionSpec(), MLAAttentionSpec()):
        assert layer_groups(config(spec)) == (LayerGroup(("a", "b"), 32),)
    both = UniformTypeKVCacheSpecs(a=FullAttentionSpec(), b=MLAAttentionSpec())
    assert layer_groups(config(both)) == (LayerGroup(("a", "b"), 32),)
    windows = [
        group.window for group in layer_groups(config(SlidingWindowSpec(), FullAttentionSpec()))
    ]
    assert windows == [80, None]


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        (
            [FullAttentionSpec(), MambaSpec()],
            "is FullAttentionSpec of 2 layers; MambaSpec of 2 layers; the connector handles",
        ),
        ([MambaSpec()], "MambaSpec of 2 layers; .* full attention and sliding windows"),
        ([UniformTypeKVCacheSpecs(a=SlidingWindowSpec(), b=FullAttentionSpec())], "Uniform"),
        ([SlidingWindowSpec(extra_retained_tokens=2)], "full attention and sliding windows"),
        ([FullAttentionSpec(), SlidingWindowSpec(block_size=16)], "blocks of 32, 16 tokens"),
    ],
)
def test_other_groups_are_refused_in_one_line_with_the_remedy(specs: list[Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        layer_groups(config(*specs))
    assert "--disable-hybrid-kv-cache-manager" in str(refusal.value)
    assert "\n" not in str(refusal.value)
