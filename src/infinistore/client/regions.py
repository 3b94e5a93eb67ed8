"""The caller's memory: caches of any kind, and which bytes of them are which block.

Nothing here imports torch or numpy: what they make is known by what it can do.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from infinistore import _native
from infinistore.client.arguments import answered
from infinistore.errors import InfiniStoreError, UsageError

UNITS = ("elements", "bytes")
_DLPACK_CPU, _DLPACK_CUDA = 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Blocks as two arrays: `keys[i]` is at `offsets[i]` of the cache; faster than tuples.

    `offsets` is a buffer of 64-bit integers, for example a numpy array of uint64.
    """

    keys: Sequence[bytes | str]
    offsets: Any


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Raw memory of blocks: block i takes the segments at `addresses[i]`, each `segment_bytes`.

    `addresses` is a buffer of uint64, shape (n,) or (n, segments). The memory must stay allocated,
    and unchanged while it is written from, until the batch is done; `keep` is held until then.
    With `device` it is that CUDA device's memory, used after the work that `stream` (a handle of
    CUDA's; 0: the default stream) holds at the call. `by_copy_engine` writes with the device's copy
    engine: slower for small segments, and no kernel of the caller's waits for it.
    """

    addresses: Any
    segment_bytes: int
    keep: Any = None
    device: int | None = None
    stream: int = 0
    by_copy_engine: bool = False

    def layout(self, key_count: int) -> tuple[Any, int]:
        """The addresses as a flat buffer, and the number of segments for each key."""
        if not isinstance(self.segment_bytes, int) or self.segment_bytes < 1:
            raise UsageError(f"segment_bytes is {self.segment_bytes!r}; give a positive integer")
        view = _view(self.addresses, "addresses")
        if view.ndim not in (1, 2):
            raise UsageError(f"addresses have {view.ndim} dimensions; shape them (n,) or (n, s)")
        shape = view.shape or ()
        if shape[0] != key_count:
            raise UsageError(f"{key_count} keys have addresses for {shape[0]} blocks")
        per_key = shape[1] if view.ndim == 2 else 1
        if key_count and per_key < 1:
            raise UsageError("addresses have no segments; shape them (n,) or (n, s) with s >= 1")
        return view, per_key


class Place(NamedTuple):
    """Whose memory it is: a CUDA device's, after a stream's work; -1: the host's."""

    device: int = -1
    stream: int = 0
    by_copy_engine: bool = False


HOST = Place()


class Region(NamedTuple):
    """One contiguous piece of the caller's memory. `keep` holds it."""

    address: int
    size_bytes: int
    element_bytes: int
    keep: Any
    place: Place = HOST


def region_of(cache: Any, *, writable: bool) -> Region:
    """The memory of a torch tensor, a numpy array, a buffer, a CUDA array or a DLPack array.

    Raises `UsageError` unless it is contiguous, the host's or a CUDA device's and, if asked for,
    writable.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(cache, torch.Tensor):
        return _dense_region(torch, cache) or _tensor_region(cache)
    if hasattr(type(cache), "__array_interface__"):
        plain = _native.plain_buffer(cache, writable)  # in a tenth of the time of _array_region()
        if plain is not None:
            return Region(*plain, cache)
    if hasattr(cache, "data_ptr") and hasattr(cache, "element_size"):
        return _tensor_region(cache)
    if hasattr(cache, "__array_interface__"):
        return _array_region(cache, writable)
    if hasattr(cache, "__cuda_array_interface__"):
        return _cuda_region(cache, writable)
    if hasattr(cache, "__dlpack__"):
        return _dlpack_region(cache, writable)
    return _buffer_region(cache, writable)


def _dense_region(torch: Any, tensor: Any) -> Region | None:
    """Of a dense tensor of the host or of CUDA: by one question to it, where others are many."""
    try:
        found = _native.dlpack_memory(torch._C._to_dlpack(tensor))
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
        return None
    if found is None or found[3] not in (_DLPACK_CPU, _DLPACK_CUDA):
        return None
    address, size_bytes, element_bytes, kind, device = found
    place = HOST if kind == _DLPACK_CPU else _place_on(device)
    return Region(address, size_bytes, element_bytes, tensor, place)


def _tensor_region(tensor: Any) -> Region:
    device = tensor.device
    kind = getattr(device, "type", None) or str(device)
    if kind not in ("cpu", "cuda"):
        raise UsageError(
            f"the cache is a tensor on {device}; only memory of the CPU and of CUDA devices "
            "can be used: copy it with .cpu() first"
        )
    if not _is_dense(tensor):
        raise UsageError(f"the cache is a tensor of layout {tensor.layout}; only dense ones work")
    if not tensor.is_contiguous():
        raise UsageError(
            f"the cache is a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()}, "
            "which is not contiguous; give the whole tensor that it is a view of, or .contiguous()"
        )
    size = int(tensor.element_size())
    place = HOST if kind == "cpu" else _place_on(int(device.index))
    return Region(int(tensor.data_ptr()), int(tensor.numel()) * size, size, tensor, place)


def _is_dense(tensor: Any) -> bool:
    layout = getattr(tensor, "layout", None)
    torch = sys.modules.get("torch")
    if torch is not None and layout is torch.strided:
        return True  # mostly, and without asking for its name
    return layout is None or str(layout) == "torch.strided"


def _place_on(device: int) -> Place:
    torch = sys.modules["torch"]  # whoever has a tensor there has loaded it
    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw_stream is not None:  # without making an object of it
        return Place(device, int(raw_stream(device)))
    return Place(device, int(torch.cuda.current_stream(device).cuda_stream))


def _cuda_region(arr: Any, writable: bool) -> Region:
    facts = arr.__cuda_array_interface__
    address, is_readonly = facts["data"]
    size = int(facts["typestr"][2:])
    shape = tuple(facts["shape"])
    strides = facts.get("strides")
    if strides is not None and tuple(strides) != _packed(shape, size):
        raise UsageError(
            f"the cache is a CUDA array of shape {shape} and strides {tuple(strides)}, which is "
            "not contiguous; give the array that it is a view of"
        )
    if writable and is_readonly:
        raise UsageError("the cache is a read-only CUDA array; read into a writable one")
    size_bytes = math.prod(shape) * size
    place = HOST
    if size_bytes:  # the interface does not name the device; its stream None: nothing is under way
        place = Place(answered(_native.gpu_of, int(address)), int(facts.get("stream") or 0))
    return Region(int(address), size_bytes, size, arr, place)


def _packed(shape: tuple[int, ...], element_bytes: int) -> tuple[int, ...]:
    strides: list[int] = []
    step = element_bytes
    for length in reversed(shape):
        strides.insert(0, step)
        step *= length
    return tuple(strides)


def place_of(segments: Segments) -> Place:
    """Whose memory raw segments are. Raises `UsageError`."""
    if segments.device is None:
        return HOST
    for name, value in (("device", segments.device), ("stream", segments.stream)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UsageError(f"{name} is {value!r}; give a number of 0 or more")
    return Place(segments.device, segments.stream, segments.by_copy_engine)


def place_at(address: int) -> Place:
    """Whose memory a bare pointer is. Only a process that has CUDA's driver can have one of it."""
    driver = os.environ.get("INFINISTORE_CUDA_LIBRARY", "libcuda.so.1")
    try:
        ctypes.CDLL(driver, os.RTLD_NOLOAD | os.RTLD_LAZY)
        return Place(answered(_native.gpu_of, address))
    except (OSError, InfiniStoreError):  # not loaded; or the host's, as CUDA says
        return HOST


def _array_region(arr: Any, writable: bool) -> Region:
    facts = arr.__array_interface__
    address, is_readonly = facts["data"]
    flags = getattr(arr, "flags", None)
    is_contiguous = bool(flags.c_contiguous) if flags is not None else facts.get("strides") is None
    if not is_contiguous:
        raise UsageError(
            f"the cache is an array of shape {facts['shape']} and strides {facts['strides']}, "
            "which is not contiguous; give the array that it is a view of, or "
            "numpy.ascontiguousarray(...)"
        )
    if writable and is_readonly:
        raise UsageError("the cache is a read-only array; read into a writable one")
    if arr.dtype.hasobject:
        raise UsageError("the cache is an array of Python objects; only numbers have bytes")
    size = int(arr.dtype.itemsize)
    return Region(int(address), int(arr.nbytes), size, arr)


def _dlpack_region(arr: Any, writable: bool) -> Region:
    kind = int(arr.__dlpack_device__()[0])
    if kind != _DLPACK_CPU:
        raise UsageError(
            f"the cache is on DLPack device type {kind}; give CUDA memory as a torch tensor or "
            "with __cuda_array_interface__, and other memory by way of the CPU's"
        )
    import numpy as np

    try:
        return _array_region(np.from_dlpack(arr), writable)
    except (BufferError, TypeError, RuntimeError) as error:
        raise UsageError(f"the cache cannot be seen through DLPack: {error}") from error


def _buffer_region(buffer: Any, writable: bool) -> Region:
    view = _view(buffer, "the cache")
    if writable and view.readonly:
        raise UsageError(
            f"the cache is a read-only {type(buffer).__name__}; read into a bytearray, an array or "
            "a tensor"
        )
    address = _native.address_of(view) if view.nbytes else 0
    # Holding the view keeps a bytearray from being resized, too.
    return Region(address, view.nbytes, view.itemsize, view)


def _view(buffer: Any, what: str) -> memoryview:
    try:
        view = memoryview(buffer)
    except TypeError:
        raise UsageError(
            f"{what} is a {type(buffer).__name__}; give a torch tensor, a numpy array or a buffer"
        ) from None
    if not view.c_contiguous:
        raise UsageError(f"{what} is not contiguous; give the memory that it is a view of")
    return view


def offsets_of(offsets: Any) -> Any:
    """Offsets as a buffer; a plain sequence of integers becomes one."""
    if isinstance(offsets, (list, tuple, range)):
        try:
            return array("Q", offsets)
        except (TypeError, OverflowError) as error:
            raise UsageError(f"offsets must be integers of 0 or more: {error}") from None
    return offsets


def page_bytes_of(region: Region, page_size: int, unit: str) -> tuple[int, int]:
    """Bytes of one element and of one page. Raises `UsageError`."""
    if unit not in UNITS:
        raise UsageError(f"unit is {unit!r}; give 'elements' or 'bytes'")
    if isinstance(page_size, bool) or not isinstance(page_size, int):
        raise UsageError(f"page_size is {page_size!r}; give an integer")
    element_bytes = region.element_bytes if unit == "elements" else 1
    if page_size < 1 or page_size * element_bytes > region.size_bytes:
        raise UsageError(
            f"page_size is {page_size} {unit}, {page_size * element_bytes} bytes; the cache has "
            f"{region.size_bytes}: give 1 to {region.size_bytes // element_bytes}"
        )
    return element_bytes, page_size * element_bytes
