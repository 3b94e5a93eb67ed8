"""The original package's names, over this one's client and server: docs/compat.md.

    connection = infinistore.InfinityConnection(infinistore.ClientConfig(
        host_addr="127.0.0.1", service_port=22345, connection_type=infinistore.TYPE_RDMA))
    connection.connect()

Errors are ours under the original's names: whoever catches those, or `Exception`, catches them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from infinistore.compat.bags import ClientConfig, ServerConfig
from infinistore.compat.connection import InfinityConnection
from infinistore.compat.words import (
    LINK_ETHERNET,
    LINK_IB,
    TYPE_LOCAL_GPU,
    TYPE_RDMA,
    TYPE_TCP,
    Logger,
)
from infinistore.errors import InfiniStoreError as InfiniStoreException
from infinistore.errors import KeyNotFound as InfiniStoreKeyNotFound
from infinistore.server.embedded import evict_cache, get_kvmap_len, purge_kv_map, register_server

__all__ = [
    "LINK_ETHERNET",
    "LINK_IB",
    "TYPE_LOCAL_GPU",
    "TYPE_RDMA",
    "TYPE_TCP",
    "ClientConfig",
    "DisableTorchCaching",
    "InfiniStoreException",
    "InfiniStoreKeyNotFound",
    "InfinityConnection",
    "Logger",
    "ServerConfig",
    "check_supported",
    "evict_cache",
    "get_kvmap_len",
    "purge_kv_map",
    "register_server",
]


def check_supported() -> None:
    """Returns: every machine has a transport. The original raised where there was no RDMA."""


@contextlib.contextmanager
def DisableTorchCaching() -> Iterator[None]:
    """Nothing needs it any more: tensors of torch's caching allocator are taken as they are."""
    yield
