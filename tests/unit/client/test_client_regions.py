"""Whose memory a cache is."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from infinistore.client.regions import HOST, Segments, page_bytes_of, region_of
from infinistore.errors import UsageError


def test_numpy_arrays() -> None:
    cache = np.zeros((3, 5), np.float16)
    region = region_of(cache, writable=True)
    assert region.address == cache.ctypes.data
    assert (region.size_bytes, region.element_bytes) == (30, 2)
    assert region.keep is cache
    part = region_of(cache[1:], writable=True)
    assert (part.address, part.size_bytes) == (cache.ctypes.data + 10, 20)
    cache.flags.writeable = False
    assert region_of(cache, writable=False).size_bytes == 30
    with pytest.raises(UsageError, match="read-only array"):
        region_of(cache, writable=True)
    assert region_of(np.zeros(0), writable=True).size_bytes == 0


@pytest.mark.parametrize("name", ["uint8", "bool", "bfloat16", "float8_e4m3fn", "complex64"])
@pytest.mark.parametrize(
    "part", [slice(None), slice(2, 4), (..., slice(0, 1)), slice(0, 0), (0, 0, 0)], ids=str
)
def test_a_tensors_memory_is_what_it_says_of_itself(name: str, part: Any) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.empty((4, 3, 5), dtype=getattr(torch, name))[part]
    if not tensor.is_contiguous():
        with pytest.raises(UsageError, match="not contiguous"):
            region_of(tensor, writable=True)
        return
    region = region_of(tensor, writable=True)
    size = tensor.element_size()
    assert region[:3] == (tensor.data_ptr(), tensor.numel() * size, size)
    assert region.keep is tensor
    assert region.place == HOST


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(4, 8, dtype=torch.bfloat16)
    region = region_of(tensor[2], writable=True)
    assert region.address == tensor.data_ptr() + 32
    assert (region.size_bytes, region.element_bytes) == (16, 2)
    for wrong in (tensor[:, 1:], tensor.t()):
        with pytest.raises(UsageError, match="not contiguous"):
            region_of(wrong, writable=True)


def test_buffers_are_held() -> None:
    cache = bytearray(12)
    region = region_of(cache, writable=True)
    assert (region.size_bytes, region.element_bytes) == (12, 1)
    with pytest.raises(BufferError):  # resized, its memory would move
        cache.append(1)
    del region
    cache.append(1)
    assert region_of(array.array("d", [1, 2]), writable=True).element_bytes == 8
    assert region_of(b"abc", writable=False).size_bytes == 3
    assert region_of(b"", writable=False).size_bytes == 0
    with pytest.raises(UsageError, match="read-only bytes"):
        region_of(b"abc", writable=True)
    with pytest.raises(UsageError, match="not contiguous"):
        region_of(memoryview(b"abcdef")[::2], writable=False)
    with pytest.raises(UsageError, match="the cache is a int; give a torch tensor"):
        region_of(5, writable=False)


class OnlyDlpack:
    """What some other array library would give."""

    def __init__(self, inner: np.ndarray, device: int = 1) -> None:
        self._inner, self._device = inner, device

    def __dlpack__(self, **how: object) -> object:
        return self._inner.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._device, 0)


def test_dlpack() -> None:
    inner = np.arange(6, dtype=np.int32)
    region = region_of(OnlyDlpack(inner), writable=False)
    assert (region.address, region.size_bytes) == (inner.ctypes.data, 24)
    with pytest.raises(UsageError, match="DLPack device type 2"):
        region_of(OnlyDlpack(inner, device=2), writable=False)


def test_pages_count_elements_or_bytes() -> None:
    region = region_of(np.zeros(10, np.int64), writable=True)
    assert page_bytes_of(region, 10, "elements") == (8, 80)
    assert page_bytes_of(region, 80, "bytes") == (1, 80)
    with pytest.raises(UsageError, match="give 1 to 10"):
        page_bytes_of(region, 11, "elements")


def test_segments_have_one_shape() -> None:
    places = np.arange(1, 7, dtype=np.uint64)
    assert Segments(places, 4).layout(6)[1] == 1
    assert Segments(places.reshape(3, 2), 4).layout(3)[1] == 2
    with pytest.raises(UsageError, match="5 keys have addresses for 6"):
        Segments(places, 4).layout(5)
    with pytest.raises(UsageError, match="no segments"):
        Segments(np.zeros((2, 0), np.uint64), 4).layout(2)
    with pytest.raises(UsageError, match="not contiguous"):
        Segments(places[::2], 4).layout(3)
