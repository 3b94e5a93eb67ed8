"""Engine-neutral: which keys a block has, and where its bytes lie in an engine's KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

import infinistore
from infinistore.connectors import _streams
from infinistore.errors import ConfigError
from infinistore.keys import HeadRange, key_part

Addresses = npt.NDArray[np.uint64]

# A piece costs its call, a wake-up and a message each way, as much CPU as copying a megabyte or
# two: small layers go together, until they have so many bytes, or are an eighth of all layers.
# A GPU copies several times as fast, and the thread that launches its work must not fall behind it.
_PIECE_BYTES, _GPU_PIECE_BYTES = 4 << 20, 64 << 20
_PIECES_MIN = 8
# Of a piece's bytes: what the last layer must have for its own call to cost less than it gains.
_LAST_LAYER_SHARE = 4
# The store has the sum of what was written in one range, and of ranges that such make up; of less
# it must read the bytes again. So pieces begin and end where those of every other step can: at
# units of layers, which a block's size alone decides.
_UNIT_BYTES, _GPU_UNIT_BYTES = 512 << 10, 128 << 10


@dataclass(frozen=True, slots=True)
class BlockParts:
    """The values that one block consists of: each head range of each stage and group of layers."""

    heads: tuple[HeadRange, ...]
    stages: int = 1
    groups: int = 1

    def __len__(self) -> int:
        return len(self.heads) * self.stages * self.groups

    def keys(self, names: Sequence[bytes]) -> list[bytes]:
        """All keys of each block, block after block: what a lookup with group=len(self) asks."""
        parts = [
            key_part(heads, group=group, stage=stage, stages=self.stages)
            for group in range(self.groups)
            for stage in range(self.stages)
            for heads in self.heads
        ]
        return [name + part for name in names for part in parts]


@dataclass(frozen=True, slots=True)
class PlaneView:
    """One tensor's part of a block: a run of bytes for every block, at equal distances."""

    base: int
    stride: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CacheMap:
    """Where every layer's bytes of a block lie; a value is the layers' runs one after the other.

    A block may be cut into `slices` of its heads, each a value: as many rows of addresses.
    """

    layers: Mapping[str, int]  # name -> index; the order within a value
    block_count: int
    segment_bytes: int  # of a slice
    planes: int  # runs of one layer: 1, or 2 where K and V are apart
    slices: int
    _bases: Addresses = field(repr=False)  # (layers, planes)
    _strides: Addresses = field(repr=False)
    device: int | None = None  # the CUDA GPU that it is on; None: the host's memory

    @classmethod
    def of(
        cls,
        planes: Mapping[str, Sequence[PlaneView]],
        block_count: int,
        device: int | None = None,
        slices: int = 1,
    ) -> CacheMap:
        """Maps layers, in the order given. Raises `ConfigError` if they are not of one shape."""
        shapes = {tuple(plane.bytes for plane in views) for views in planes.values()}
        if len(shapes) != 1 or len({size for shape in shapes for size in shape}) != 1:
            sizes = ", ".join(f"{n}: {[p.bytes for p in v]}" for n, v in list(planes.items())[:4])
            raise ConfigError(
                f"the layers' blocks differ in bytes ({sizes}): such a KV cache is not supported"
            )
        views = list(planes.values())
        return cls(
            layers={name: index for index, name in enumerate(planes)},
            block_count=block_count,
            segment_bytes=views[0][0].bytes // slices,
            planes=len(views[0]),
            slices=slices,
            _bases=np.array([[p.base for p in v] for v in views], dtype=np.uint64),
            _strides=np.array([[p.stride for p in v] for v in views], dtype=np.uint64),
            device=device,
        )

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer in a value."""
        return self.planes * self.segment_bytes

    @property
    def value_bytes(self) -> int:
        """Bytes of a value: all layers of a slice of one block."""
        return len(self.layers) * self.layer_bytes

    def addresses(self, block_ids: Sequence[int]) -> Addresses:
        """The addresses of blocks' runs, (blocks * slices, layers * planes): layers in order."""
        ids = np.asarray(block_ids, dtype=np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self.block_count):
            raise IndexError(f"block {int(ids.max())} of a KV cache of {self.block_count} blocks")
        bases, strides = self._bases.reshape(1, -1), self._strides.reshape(1, -1)
        whole = bases + ids.astype(np.uint64)[:, None] * strides
        if self.slices == 1:
            return np.ascontiguousarray(whole)
        cuts = np.arange(self.slices, dtype=np.uint64) * np.uint64(self.segment_bytes)
        return np.ascontiguousarray(
            (whole[:, None, :] + cuts[None, :, None]).reshape(-1, whole.shape[1])
        )

    def columns(self, layers: range) -> slice:
        """Which columns of `addresses` are of these layers."""
        return slice(layers.start * self.planes, layers.stop * self.planes)

    def segments(self, addresses: Addresses, *, while_computing: bool) -> infinistore.Segments:
        """Runs for the client. On a GPU they are touched once all that is queued now has run.

        `while_computing`: by a copy engine, so that the model's kernels need not wait for it.
        """
        if self.device is None:
            return infinistore.Segments(addresses, self.segment_bytes)
        stream = _streams.current_stream(self.device)
        return infinistore.Segments(
            addresses,
            self.segment_bytes,
            device=self.device,
            stream=stream,
            by_copy_engine=while_computing,
        )

    @property
    def _unit(self) -> int:
        unit_bytes = _UNIT_BYTES if self.device is None else _GPU_UNIT_BYTES
        return unit_layers(len(self.layers), self.layer_bytes, unit_bytes)

    @property
    def _piece_bytes(self) -> int:
        return _PIECE_BYTES if self.device is None else _GPU_PIECE_BYTES

    def save_pieces(self, values: int) -> list[range]:
        """How the layers of so many values are grouped to be written, as they are computed."""
        step_bytes = values * self.layer_bytes
        return save_pieces(len(self.layers), self._unit, step_bytes, self._piece_bytes)

    def load_pieces(self, values: int) -> list[range]:
        """How the layers of so many values are grouped to be read."""
        step_bytes = values * self.layer_bytes
        return load_pieces(len(self.layers), self._unit, step_bytes, self._piece_bytes)


def unit_layers(layers: int, layer_bytes: int, unit_bytes: int) -> int:
    """Layers that are written in one piece at most; `layer_bytes` is of one value."""
    return max(1, min(-(-unit_bytes // layer_bytes), layers // _PIECES_MIN))


def save_pieces(layers: int, unit: int, step_bytes: int, piece_bytes: int) -> list[range]:
    """Units, or equal parts of them that are large enough; `step_bytes` is of a layer's values.

    A large last layer goes alone: nothing computes while it is copied.
    """
    parts = [
        size for size in range(1, unit) if unit % size == 0 and size * step_bytes >= piece_bytes
    ]
    pieces = _cut(layers, parts[0] if parts else unit)
    if len(pieces[-1]) > 1 and step_bytes >= piece_bytes // _LAST_LAYER_SHARE:
        pieces[-1:] = [pieces[-1][:-1], pieces[-1][-1:]]
    return pieces


def load_pieces(layers: int, unit: int, step_bytes: int, piece_bytes: int) -> list[range]:
    """Whole units, several until they are large enough, though an eighth of all at most."""
    wanted = -(-piece_bytes // (unit * step_bytes))
    return _cut(layers, unit * max(1, min(wanted, layers // _PIECES_MIN // unit)))


def _cut(layers: int, size: int) -> list[range]:
    return [range(first, min(first + size, layers)) for first in range(0, layers, size)]
