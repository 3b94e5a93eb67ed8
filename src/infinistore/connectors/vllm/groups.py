"""One worker's part of a group of layers: where its blocks lie, and which values they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from infinistore.connectors._blocks import CacheMap
from infinistore.connectors.vllm.identity import EngineShape
from infinistore.connectors.vllm.layout import TensorLike, map_caches
from infinistore.keys import key_part


@dataclass(frozen=True, slots=True)
class GroupCache:
    """The group's memory, and what follows a block's name in the key of its value."""

    cache: CacheMap
    key_part: bytes

    def keys(self, names: Iterable[bytes]) -> list[bytes]:
        """The keys of blocks' values."""
        return [name + self.key_part for name in names]


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """A layer's group, and its index in the values of that group."""

    group: int
    index: int


def map_groups(
    caches: Mapping[str, TensorLike], block_count: int, shape: EngineShape, rank: int, stage: int
) -> list[GroupCache]:
    """A worker's groups. Raises `ConfigError` for memory that it cannot address."""
    made = []
    for number, group in enumerate(shape.groups):
        # Groups lie over each other in memory. One alone has all layers, whatever it lists.
        mine = caches if len(shape.groups) == 1 else _only(caches, group.layers)
        part = key_part(shape.heads(rank), group=number, stage=stage, stages=shape.stages)
        made.append(GroupCache(map_caches(mine, block_count), part))
    return made


def _only(caches: Mapping[str, TensorLike], layers: Sequence[str]) -> dict[str, TensorLike]:
    return {name: caches[name] for name in layers if name in caches}


def layer_places(groups: Sequence[GroupCache]) -> dict[str, LayerPlace]:
    """Where each layer is, by its name."""
    return {
        name: LayerPlace(number, index)
        for number, group in enumerate(groups)
        for name, index in group.cache.layers.items()
    }
