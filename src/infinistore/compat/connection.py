"""InfinityConnection: the original's connection, with all the calls that it ever had."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from infinistore.client.regions import Segments
from infinistore.client.results import raise_if
from infinistore.compat.bags import ClientConfig
from infinistore.compat.link import Pairs, check_read
from infinistore.compat.long_keys import keys_of
from infinistore.compat.tensors import EarlyForms
from infinistore.errors import InfiniStoreError, UsageError

DONE = 200  # what the original's awaitables give
VALUE_GUESS_BYTES = 64 * 1024


class InfinityConnection(EarlyForms):
    """One server, for any number of threads and event loops."""

    OP_RDMA_READ = "A"

    def __init__(self, config: ClientConfig) -> None:
        super().__init__(config)
        self._value_guess_bytes = VALUE_GUESS_BYTES

    async def connect_async(self) -> None:
        """See `connect`."""
        await asyncio.to_thread(self.connect)

    # ---- blocks at pointers, registered before ----

    async def rdma_write_cache_async(self, blocks: Any, *where: Any) -> int:
        """Writes (blocks, block_size, ptr): blocks of [(key, byte offset)]; 200 when it is done.

        With a tensor before them they are the arguments of early 2025, see `rdma_write_cache`.
        """
        if hasattr(blocks, "data_ptr"):
            batch = self._write_promised(blocks, *where)
        elif not blocks:
            return DONE
        else:
            batch = self._write(blocks, *where)
        await batch.wait_async()
        raise_if(batch.error())
        return DONE

    async def rdma_read_cache_async(self, blocks: Pairs, block_size: int, ptr: int) -> int:
        """Reads blocks; 200 when it is done. A shorter value leaves the rest of its block as it is.

        Raises `InfiniStoreKeyNotFound` if any is missing.
        """
        if not blocks:
            return DONE
        batch = self._read(blocks, block_size, ptr)
        await batch.wait_async()
        check_read(batch, block_size)
        return DONE

    # ---- one value at a pointer ----

    def tcp_write_cache(self, key: str, ptr: int, size: int, **kwargs: Any) -> None:
        """Writes `size` bytes at `ptr`."""
        for name, value in (("size", size), ("ptr", ptr)):
            if not value:
                raise UsageError(f"{name} is 0")
        segments = Segments(np.array([ptr], np.uint64), size)
        batch = self.client.write_segments(keys_of([key]), segments, on_exists="replace")
        batch.wait()
        raise_if(batch.error())

    def tcp_read_cache(self, key: str, **kwargs: Any) -> np.ndarray[Any, Any] | None:
        """The value's bytes; None: there is none."""
        keys, client = keys_of([key]), self.client
        size = self._value_guess_bytes
        while True:
            value = np.empty(size, np.uint8)
            batch = client.read_cache(value, [(keys[0], 0)], size, up_to=True)
            if batch.wait().missing:
                return None
            raise_if(batch.error())
            stored = batch.value_bytes[0]
            if stored <= size:
                # Values of one connection are mostly of one size: the next one comes in one step.
                self._value_guess_bytes = max(stored, VALUE_GUESS_BYTES)
                return value if stored == size else value[:stored].copy()
            size = stored

    # ---- keys ----

    def check_exist(self, key: str) -> bool:
        """Whether the key is there."""
        return self.client.exists(keys_of([key]))[0]

    def get_match_last_index(self, keys: Sequence[str]) -> int:
        """The last index that a binary search finds present: the original's answer, in one request.

        `Client.match_prefix` is exact also where keys in between are gone.
        """
        present = self.client.exists(keys_of(keys))
        low, high = 0, len(present)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if present[middle] else (low, middle)
        if low == 0:
            raise InfiniStoreError("can't find a match")
        return low - 1

    def delete_keys(self, keys: Sequence[str]) -> int:
        """Erases keys; how many were there."""
        return self.client.delete(keys_of(keys))
