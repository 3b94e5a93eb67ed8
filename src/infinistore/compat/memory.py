"""Memory that a caller registered: which pointers are good, and whose memory it is."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from infinistore.client.regions import HOST, Place, Segments, place_at, region_of
from infinistore.errors import UsageError

# One who registers each object anew must not fill the process's memory: the oldest go.
REGIONS_MAX = 65536


class _Registered(NamedTuple):
    size: int
    place: Place
    keep: Any


class RegisteredMemory:
    """Regions by their first address. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._regions: dict[int, _Registered] = {}

    def register(self, memory: Any, size: int | None) -> None:
        """A pointer and a size, or a tensor. Raises `NotImplementedError` for anything else."""
        if hasattr(memory, "data_ptr"):
            region = region_of(memory, writable=True)
            ptr, known = region.address, _Registered(region.size_bytes, region.place, memory)
        elif isinstance(memory, int) and isinstance(size, int):
            if memory <= 0 or size <= 0:
                raise UsageError(f"register memory region failed: {size} bytes at {memory:#x}")
            ptr, known = memory, _Registered(size, place_at(memory), None)
        else:
            raise NotImplementedError(
                f"register_mr takes a pointer and a size, not a {type(memory).__name__}"
            )
        with self._lock:
            self._regions.pop(ptr, None)
            if len(self._regions) >= REGIONS_MAX:
                del self._regions[next(iter(self._regions))]
            self._regions[ptr] = known

    def segments(self, ptr: int, offsets: Sequence[int], block_size: int) -> Segments:
        """Blocks at offsets from `ptr`. Raises `UsageError` unless they lie in one region."""
        base, known = self._find(ptr)
        if (
            block_size < 1
            or min(offsets) < 0
            or ptr + max(offsets) + block_size > base + known.size
        ):
            raise UsageError(
                f"blocks of {block_size} bytes at offsets {min(offsets)} to {max(offsets)} do not "
                f"lie in the registered {known.size} bytes at {base:#x}; register all of it"
            )
        addresses = np.array(offsets, np.uint64) + np.uint64(ptr)
        place = known.place
        if place == HOST:
            return Segments(addresses, block_size, keep=known.keep)
        return Segments(
            addresses, block_size, known.keep, place.device, _current_stream(place.device)
        )

    def _find(self, ptr: int) -> tuple[int, _Registered]:
        with self._lock:
            known = self._regions.get(ptr)
            if known is not None:
                return ptr, known
            for base, inside in self._regions.items():
                if base <= ptr < base + inside.size:
                    return base, inside
        raise UsageError(
            f"the memory at {ptr:#x} is not registered (the original's ret = -1); call "
            "register_mr(ptr, size) first"
        )


def _current_stream(device: int) -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    return int(torch.cuda.current_stream(device).cuda_stream)
