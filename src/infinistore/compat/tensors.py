"""The calls that the original had from October 2024 to March 2025: tensors, and single values.

Offsets and page sizes count elements of the tensor. Writes are waited for by sync(), reads at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from infinistore.client.regions import Blocks
from infinistore.client.results import Batch, raise_if
from infinistore.compat.bags import ClientConfig
from infinistore.compat.link import Link, Pairs, check_read
from infinistore.compat.long_keys import keys_of
from infinistore.errors import UsageError

REMOTE_BLOCK = np.dtype([("rkey", np.uint32), ("remote_addr", np.uint64)])
# Allocations that nobody has written to yet, in one connection.
PROMISED_MAX = 1 << 20


class EarlyForms(Link):
    """What the connection had before its blocks were bytes at pointers."""

    OP_R, OP_W, OP_SYNC, OP_RDMA_WRITE = "R", "W", "S", "D"

    def __init__(self, config: ClientConfig) -> None:
        super().__init__(config)
        self._promised: dict[int, bytes] = {}
        self._next_address = 1
        self._promises = threading.Lock()

    # ---- tensors ----

    def write_cache(self, cache: Any, blocks: Pairs, page_size: int) -> None:
        """Writes pages of a tensor; sync() waits for it."""
        self.client.write_cache(cache, _blocks(blocks), page_size, on_exists="replace")

    def local_gpu_write_cache(self, cache: Any, blocks: Pairs, page_size: int) -> int:
        """See `write_cache`."""
        if not self.local_connected:
            raise UsageError("this function is only valid for a connection of TYPE_LOCAL_GPU")
        self.write_cache(cache, blocks, page_size)
        return 0

    def read_cache(self, cache: Any, blocks: Pairs, page_size: int) -> None:
        """Reads pages into a tensor, and returns when they are there.

        Raises `InfiniStoreKeyNotFound`.
        """
        batch = self.client.read_cache(cache, _blocks(blocks), page_size)
        batch.wait()
        raise_if(batch.error())

    async def read_cache_async(self, cache: Any, blocks: Pairs, page_size: int) -> None:
        """See `read_cache`."""
        batch = self.client.read_cache(cache, _blocks(blocks), page_size)
        await batch.wait_async()
        raise_if(batch.error())

    def sync(self) -> None:
        """Waits for all writes; raises the first failure."""
        self.client.sync()

    # ---- allocations, written to afterwards ----

    def allocate_rdma(self, keys: Sequence[str], page_size_in_bytes: int) -> np.ndarray[Any, Any]:
        """Names for values that `rdma_write_cache` will write; no key is seen before its bytes."""
        self._check_rdma()
        known = keys_of(keys)
        with self._promises:
            if len(self._promised) + len(known) > PROMISED_MAX:
                raise UsageError(
                    f"allocate memory failed: {PROMISED_MAX} allocations were never written to"
                )
            first = self._next_address
            self._next_address += len(known)
            self._promised.update(zip(range(first, self._next_address), known, strict=True))
        blocks = np.zeros(len(known), REMOTE_BLOCK)
        blocks["remote_addr"] = np.arange(first, first + len(known), dtype=np.uint64)
        return blocks

    async def allocate_rdma_async(
        self, keys: Sequence[str], page_size_in_bytes: int
    ) -> np.ndarray[Any, Any]:
        """See `allocate_rdma`."""
        return self.allocate_rdma(keys, page_size_in_bytes)

    def rdma_write_cache(
        self, cache: Any, offsets: Sequence[int], page_size: int, remote_blocks: Any
    ) -> int:
        """Writes pages of a tensor to what was allocated; sync() waits for it."""
        self._write_promised(cache, offsets, page_size, remote_blocks)
        return 0

    def _write_promised(
        self, cache: Any, offsets: Sequence[int], page_size: int, remote_blocks: Any
    ) -> Batch:
        addresses = [int(block["remote_addr"]) for block in remote_blocks]
        with self._promises:
            unknown = [address for address in addresses if address not in self._promised]
            if unknown:
                raise UsageError(f"blocks {unknown[:3]} come from no allocate_rdma(), or are used")
            keys = [self._promised.pop(address) for address in addresses]
        blocks = Blocks(keys, list(offsets))
        return self.client.write_cache(cache, blocks, page_size, on_exists="replace")

    # ---- single values, in registered memory ----

    def rdma_write_cache_single(self, key: str, ptr: int, size: int, **kwargs: Any) -> int:
        """Writes one value; 0."""
        batch = self._write([(key, 0)], size, ptr)
        batch.wait()
        raise_if(batch.error())
        return 0

    async def rdma_write_cache_single_async(
        self, key: str, ptr: int, size: int, **kwargs: Any
    ) -> int:
        """See `rdma_write_cache_single`."""
        batch = self._write([(key, 0)], size, ptr)
        await batch.wait_async()
        raise_if(batch.error())
        return 0

    def read_cache_single(self, key: str, ptr: int, size: int, **kwargs: Any) -> int:
        """Reads one value of at most `size` bytes; 0. Raises `InfiniStoreKeyNotFound`."""
        batch = self._read([(key, 0)], size, ptr)
        batch.wait()
        check_read(batch, size)
        return 0

    async def read_cache_single_async(self, key: str, ptr: int, size: int, **kwargs: Any) -> int:
        """See `read_cache_single`."""
        batch = self._read([(key, 0)], size, ptr)
        await batch.wait_async()
        check_read(batch, size)
        return 0


def _blocks(blocks: Pairs) -> Blocks:
    return Blocks(keys_of(key for key, _ in blocks), [offset for _, offset in blocks])
