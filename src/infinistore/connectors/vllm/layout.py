"""vLLM's KV cache as it lies in memory: groups of layers, each block one or two runs a layer.

In main memory, or in that of one CUDA GPU. Blocks are opaque: a CPU kernel packs K as its
instruction set likes, a GPU's kernel orders heads and tokens as it likes. Only whole blocks move.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from infinistore.connectors._blocks import CacheMap, PlaneView
from infinistore.errors import ConfigError


class TensorLike(Protocol):
    """The part of torch.Tensor that is used here."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def device(self) -> Any: ...
    def stride(self) -> Sequence[int]: ...
    def data_ptr(self) -> int: ...
    def element_size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with one block table; blocks before the window of the next token are given back."""

    layers: tuple[str, ...]
    block_tokens: int
    window: int | None = None  # tokens that a layer sees; None: all before


def layer_groups(kv_cache_config: Any) -> tuple[LayerGroup, ...]:
    """The groups of layers that share a block table.

    Raises `ConfigError` naming the groups if one has no blocks of tokens (states), or gives them
    back by another rule than that of a sliding window.
    """
    groups = kv_cache_config.kv_cache_groups
    kinds = "; ".join(
        f"{type(group.kv_cache_spec).__name__} of {len(group.layer_names)} layers"
        for group in groups
    )
    read = tuple(_layer_group(group, kinds) for group in groups)
    if len({group.block_tokens for group in read}) != 1:
        sizes = ", ".join(str(group.block_tokens) for group in read)
        raise ConfigError(
            f"this model's KV cache groups ({kinds}) have blocks of {sizes} tokens; the connector "
            "needs them alike: start vLLM with --disable-hybrid-kv-cache-manager, or without it"
        )
    return read


def _layer_group(group: Any, kinds: str) -> LayerGroup:
    spec = group.kv_cache_spec
    inner = list(getattr(spec, "kv_cache_specs", {"": spec}).values())
    windows = {_window(each) for each in inner}
    is_kept = getattr(group, "enable_kv_transfer", True) and not getattr(
        group, "host_resident", False
    )
    if len(windows) != 1 or 0 in windows or not is_kept:
        raise ConfigError(
            f"the KV cache is {kinds}; the connector handles full attention and sliding windows: "
            "start vLLM with --disable-hybrid-kv-cache-manager, or without it"
        )
    return LayerGroup(tuple(group.layer_names), spec.block_size, windows.pop())


def _window(spec: Any) -> int | None:
    """Tokens that a layer sees; None: all before. 0: by another rule than these two."""
    # By name, for MLA and full attention share no base class in every version.
    if any("FullAttention" in c.__name__ for c in type(spec).__mro__):
        return None
    retained: Any = getattr(spec, "extra_retained_tokens", None)
    if type(spec).__name__ != "SlidingWindowSpec" or retained:
        return 0
    return int(spec.sliding_window)


def in_order(layer_names: Sequence[str]) -> list[str]:
    """Layers by the numbers in their names: the same order in every version of vLLM."""

    def numbers(name: str) -> tuple[tuple[int, ...], str]:
        return tuple(int(digits) for digits in re.findall(r"\d+", name)), name

    return sorted(layer_names, key=numbers)


def map_caches(
    caches: Mapping[str, TensorLike], block_count: int, *, slices: int = 1, heads: int = 1
) -> CacheMap:
    """Where the blocks of all layers lie, each cut into `slices` of its `heads`.

    Raises `ConfigError` for memory it cannot address, or cannot cut.
    """
    if not caches:
        raise ConfigError("the model has no KV cache: there is nothing to save or load")
    names = in_order(list(caches))
    device = device_of({name: caches[name].device for name in names})
    planes: dict[str, list[PlaneView]] = {}
    seen: set[int] = set()
    for name in names:
        tensor = caches[name]
        if tensor.data_ptr() in seen:
            continue  # a layer that shares another's KV
        seen.add(tensor.data_ptr())
        planes[name] = layer_planes(name, tensor, block_count)
        if slices > 1:
            check_cut(name, tensor, block_count, heads)
    return CacheMap.of(planes, block_count, device, slices)


def check_cut(name: str, tensor: TensorLike, block_count: int, heads: int) -> None:
    """Raises `ConfigError` unless a block holds all bytes of one head after those of another."""
    shape, strides = list(tensor.shape), list(tensor.stride())
    # Blocks, heads, tokens, content, as newer versions have it; else the heads where they can be.
    is_fused = len(shape) == 4 and shape[1] == heads
    if shape[0] == 2 != block_count:  # K and V apart
        shape, strides, is_fused = shape[1:], strides[1:], False
    inner = shape[1:]
    places = [0] if is_fused else []
    places = places or [place for place, size in enumerate(inner) if size == heads]
    is_outermost = len(places) == 1 and strides[1 + places[0]] == _elements(inner) // heads
    if not is_outermost or shape[0] != block_count:
        raise ConfigError(
            f"a block of {name} cannot be cut into heads (shape {shape}, strides {strides}, "
            f"{heads} heads): leave split_tp out, or choose VLLM_KV_CACHE_LAYOUT=HND or another "
            "block size"
        )


def device_of(devices: Mapping[str, object]) -> int | None:
    """The CUDA GPU that all layers are on; None: they are in main memory.

    Raises `ConfigError` for another kind of memory, or for layers on several devices.
    """
    names: dict[str, str] = {}
    for layer, device in devices.items():
        names.setdefault(str(device), layer)
    if len(names) > 1:
        spread = ", ".join(f"{layer} on {device}" for device, layer in names.items())
        raise ConfigError(
            f"the KV cache is on {len(names)} devices ({spread}); the connector moves that of one "
            "device a worker: give each GPU a worker of its own (--tensor-parallel-size or "
            "--pipeline-parallel-size)"
        )
    ((name, layer),) = names.items()
    kind, _, index = name.partition(":")
    if kind == "cpu":
        return None
    if kind != "cuda" or not (index or "0").isdigit():
        raise ConfigError(
            f"the KV cache of {layer} is on {name}; the connector moves caches in main memory and "
            "on CUDA GPUs"
        )
    return int(index or "0")


def layer_planes(name: str, tensor: TensorLike, block_count: int) -> list[PlaneView]:
    """A layer's runs: one if K and V lie together in a block, else two."""
    shape, strides = list(tensor.shape), list(tensor.stride())
    size = tensor.element_size()
    if shape[0] % block_count == 0 and shape[0] >= block_count:
        return [_plane(name, tensor.data_ptr(), shape, strides, size, block_count)]
    if shape[0] == 2 and shape[1] % block_count == 0:
        return [
            _plane(
                name,
                tensor.data_ptr() + half * strides[0] * size,
                shape[1:],
                strides[1:],
                size,
                block_count,
            )
            for half in range(2)
        ]
    raise ConfigError(
        f"the KV cache of {name} has shape {shape}: where are its {block_count} blocks?"
    )


def _plane(
    name: str, base: int, shape: list[int], strides: list[int], size: int, block_count: int
) -> PlaneView:
    # A kernel may cut the engine's block into several of its own, one behind the other.
    pieces = shape[0] // block_count
    inner = _elements(shape[1:])
    span = 1 + sum((n - 1) * stride for n, stride in zip(shape[1:], strides[1:], strict=True))
    if span != inner or (pieces > 1 and strides[0] != inner):
        raise ConfigError(
            f"a block of {name} is not one run of bytes (shape {shape}, strides {strides}): "
            "choose another VLLM_KV_CACHE_LAYOUT"
        )
    return PlaneView(base=base, stride=pieces * strides[0] * size, bytes=pieces * inner * size)


def _elements(shape: Sequence[int]) -> int:
    product = 1
    for n in shape:
        product *= n
    return product
