"""One worker's part of a group of layers: where its blocks lie, and which values they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from infinistore.connectors._blocks import CacheMap
from infinistore.connectors.vllm.identity import EngineShape
from infinistore.connectors.vllm.layout import TensorLike, map_caches
from infinistore.keys import key_part

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class GroupCache:
    """The group's memory, and what follows a block's name in the key of each of its values."""

    cache: CacheMap
    key_parts: tuple[bytes, ...]  # of each slice of the heads

    def keys(self, names: Iterable[bytes]) -> list[bytes]:
        """The keys of blocks' values, slice after slice of each block."""
        return [name + part for name in names for part in self.key_parts]

    def parents(self, names: Iterable[bytes]) -> list[bytes | None]:
        """The keys of the values that these follow, as `keys`; None for the first of a chain."""
        return [name + part if name else None for name in names for part in self.key_parts]

    def of_each(self, items: Iterable[Item]) -> list[Item]:
        """What is said of blocks, for each of their values."""
        return [item for item in items for _ in self.key_parts]


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """A layer's group, and its index in the values of that group."""

    group: int
    index: int


def map_groups(
    caches: Mapping[str, TensorLike], block_count: int, shape: EngineShape, rank: int, stage: int
) -> list[GroupCache]:
    """A worker's groups. Raises `ConfigError` for memory that it cannot address."""
    own, slices = shape.heads(rank), shape.slices(rank)
    made = []
    for number, group in enumerate(shape.groups):
        # Groups lie over each other in memory. One alone has all layers, whatever it lists.
        mine = caches if len(shape.groups) == 1 else _only(caches, group.layers)
        parts = tuple(
            key_part(heads, group=number, stage=stage, stages=shape.stages) for heads in slices
        )
        cache = map_caches(mine, block_count, slices=len(slices), heads=own.end - own.start)
        made.append(GroupCache(cache, parts))
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
