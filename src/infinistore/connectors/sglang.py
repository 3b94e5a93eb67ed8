"""SGLang's hierarchical cache over an InfiniStore: a storage backend that it loads by its name.

    --enable-hierarchical-cache --hicache-mem-layout page_first
    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
      '{"backend_name": "infinistore", "module_path": "infinistore.connectors.sglang",
        "class_name": "InfiniStoreHiCache", "interface_v1": 1, "url": "infinistore://host:22345"}'

A page of a rank is one value, K and V of all its layers: it is there whole, or not at all. Nothing
escapes to SGLang: what fails is a miss, or a page that was not stored.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

import infinistore
from infinistore.client.regions import Segments
from infinistore.connectors.vllm.counters import Warner
from infinistore.connectors.vllm.weights import UnknownWeights, digest_directory
from infinistore.errors import Code, ConfigError, InfiniStoreError

logger = logging.getLogger(__name__)

LEASE_S = 10.0  # what was found stays so long, for the reads that follow
TIMEOUT_S = 30.0
_SHAPE = ("layout", "page_size", "dtype", "layer_num", "head_num", "head_dim", "kv_lora_rank")


class InfiniStoreHiCache(HiCacheStorage):  # type: ignore[misc]
    """One rank's pages. `extra_config` takes url, token, transport, tenant and weights_id."""

    def __init__(self, storage_config: Any, options: Any = None) -> None:
        self._config = storage_config
        self._extra: dict[str, Any] = dict(storage_config.extra_config or {})
        for name in ("should_split_heads", "dcp_size"):
            if getattr(storage_config, name, 0) not in (0, 1, False):
                raise ConfigError(f"{name} = {getattr(storage_config, name)} is not supported")
        self._suffix = _suffix(storage_config)
        self._weights = _weights(storage_config.model_name, self._extra)
        self._client: infinistore.Client | None = None
        self._warner = Warner(logger)

    # ---- SGLang's set-up ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Learns where the pages are, and connects: their shape is part of the namespace."""
        super().register_mem_pool_host(mem_pool_host)
        namespace = "/".join(
            (
                str(self._extra.get("tenant", "default")),
                "sglang-1",
                f"weights-{self._weights}",
                *(f"{name}-{getattr(mem_pool_host, name, 'none')}" for name in _SHAPE),
            )
        )
        logger.info("namespace %s", namespace)
        self._client = infinistore.connect(
            str(self._extra.get("url", "infinistore://127.0.0.1:22345")),
            namespace,
            self._extra.get("token"),
            transport=self._extra.get("transport"),
        )

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Refuses models that keep more than one kind of KV."""
        if str(host_pool_name) != "kv":
            raise ConfigError(
                f"the model has a second host pool, {host_pool_name}: such models cannot be "
                "stored yet; take another storage backend for it"
            )
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    def close(self) -> None:
        """Ends the connection."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def clear(self) -> None:
        """Nothing: others may use these pages. `infinistore purge` empties a namespace."""

    # ---- which pages are there ----

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many from the first on; they stay for `LEASE_S`."""
        if self._client is None or not keys:
            return 0
        try:
            return self._client.lookup(self._keys(keys), lease_s=LEASE_S).wait(TIMEOUT_S)
        except InfiniStoreError as error:
            self._warner.warn("no answer about %d pages: %s", len(keys), error)
            return 0

    # ---- pages of the host's pool, in place ----

    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Reads pages to where `host_indices` says."""
        return self._moved("read", keys, self._pages(keys, host_indices))

    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Stores pages, as the continuation of those that `extra_info` names."""
        if not self._is_writer:
            return [True] * len(keys)
        chain = getattr(extra_info, "prefix_keys", None)
        return self._moved("write", keys, self._pages(keys, host_indices), chain)

    # ---- pages as tensors ----

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        """The tensors given, filled; None for a page that is not there."""
        if not keys or target_locations is None or any(t is None for t in target_locations):
            return [None] * len(keys)
        found = self._moved("read", keys, _of_tensors(target_locations))
        return [t if ok else None for t, ok in zip(target_locations, found, strict=True)]

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Stores tensors; whether all of them are there now."""
        if not keys or not self._is_writer:
            return True
        if values is None or any(value is None for value in values):
            return False
        whole = [value.contiguous() for value in values]
        return all(self._moved("write", keys, _of_tensors(whole)))

    # ---- moving ----

    @property
    def _is_writer(self) -> bool:
        return bool(getattr(self._config, "is_storage_writer", True))

    def _keys(self, keys: Sequence[str]) -> list[bytes]:
        return [key.encode() + self._suffix for key in keys]

    def _pages(self, keys: Sequence[str], host_indices: Any) -> Segments:
        pointers, sizes = self.mem_pool_host.get_page_buffer_meta(host_indices)
        if len(set(sizes)) != 1 or len(pointers) % len(keys):
            raise ConfigError(
                f"the host pool's layout {getattr(self.mem_pool_host, 'layout', '?')} has pages of "
                "unequal parts; start SGLang with --hicache-mem-layout page_first"
            )
        places = np.array(pointers, np.uint64).reshape(len(keys), -1)
        return Segments(places, int(sizes[0]), keep=self.mem_pool_host)

    def _moved(
        self, verb: str, keys: Sequence[str], pages: Segments, chain: Sequence[str] | None = None
    ) -> list[bool]:
        if self._client is None:
            return [False] * len(keys)
        ours = self._keys(keys)
        try:
            if verb == "read":
                size = pages.segment_bytes * int(np.prod(np.shape(pages.addresses)[1:]))
                batch = self._client.read_segments(ours, pages, value_bytes=size)
            else:
                batch = self._client.write_segments(ours, pages, **_chained(ours, chain, self))
            try:
                outcomes = batch.wait(TIMEOUT_S)
            except InfiniStoreError:
                batch.cancel()
                outcomes = batch.wait()
        except InfiniStoreError as error:
            self._warner.warn("%d pages: the %s failed: %s", len(keys), verb, error)
            return [False] * len(keys)
        if outcomes.failed:
            self._warner.warn("the %s of pages: %s", verb, batch.error())
        return [code in (Code.OK, Code.EXISTS) for code in outcomes]


def _chained(
    keys: list[bytes], before: Sequence[str] | None, backend: InfiniStoreHiCache
) -> dict[str, Any]:
    """Which page follows which, for the eviction policy; nothing, where SGLang does not say."""
    if before is None:
        return {}
    first = backend._keys(before[-1:])
    parents: list[bytes | None] = [first[0] if first else None, *keys[:-1]]
    return {"parents": parents, "depths": list(range(len(before), len(before) + len(keys)))}


def _of_tensors(tensors: Sequence[Any]) -> Segments:
    sizes = {tensor.numel() * tensor.element_size() for tensor in tensors}
    if len(sizes) != 1:
        raise ConfigError(f"pages of one call have unlike sizes: {sorted(sizes)} bytes")
    places = np.array([tensor.data_ptr() for tensor in tensors], np.uint64)
    return Segments(places, sizes.pop(), keep=list(tensors))


def _suffix(config: Any) -> bytes:
    """What follows a page's hash in its key: which ranks hold the same bytes."""
    rank = "all" if config.is_mla_model else f"{config.tp_rank}.{config.tp_size}"
    context = f"{getattr(config, 'attn_cp_rank', 0)}.{getattr(config, 'attn_cp_size', 1)}"
    return f"/t{rank}/p{config.pp_rank}.{config.pp_size}/c{context}".encode()


def _weights(model: str | None, extra: dict[str, Any]) -> str:
    """The user's word, the files' digest, or an id of this process alone."""
    if extra.get("weights_id"):
        return f"id-{extra['weights_id']}"
    try:
        if not model or not Path(model).exists():
            raise UnknownWeights(f"{model!r} is no directory")
        return digest_directory(Path(model))
    except UnknownWeights as error:
        logger.warning(
            "the weights have no digest (%s): pages are shared with no other engine. "
            "Give weights_id in the extra config to share them",
            error,
        )
        return f"random-{secrets.token_hex(16)}"
