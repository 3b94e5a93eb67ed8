"""InfiniStore: a memory pool for the KV caches of LLM inference.

with infinistore.connect("infinistore://host:22345") as store:
    store.write_cache(cache, [("key", 0)], page_size=4096)
    store.sync()
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from infinistore.client.aio import AsyncClient
from infinistore.client.regions import Blocks, Segments
from infinistore.client.results import Batch, Lookup, Outcomes
from infinistore.client.sync import Client
from infinistore.cluster.connect import connect, connect_async
from infinistore.errors import (
    AbortedError,
    AuthError,
    Code,
    ConfigError,
    ConnectError,
    CorruptError,
    DisconnectedError,
    InfiniStoreError,
    KeyNotFound,
    LeaseExpiredError,
    LinkError,
    OutOfMemoryError,
    OverloadedError,
    ProtocolError,
    QuotaError,
    RequestTimeoutError,
    SetupError,
    SizeMismatchError,
    StoreError,
    TooLargeError,
    UsageError,
)

if TYPE_CHECKING:
    from infinistore.compat import (
        LINK_ETHERNET,
        LINK_IB,
        TYPE_LOCAL_GPU,
        TYPE_RDMA,
        TYPE_TCP,
        ClientConfig,
        DisableTorchCaching,
        InfiniStoreException,
        InfiniStoreKeyNotFound,
        InfinityConnection,
        Logger,
        ServerConfig,
        check_supported,
        evict_cache,
        get_kvmap_len,
        purge_kv_map,
        register_server,
    )

try:
    __version__ = version("infinistore")
except PackageNotFoundError:  # run from its sources
    __version__ = "0"

__all__ = [
    "LINK_ETHERNET",
    "LINK_IB",
    "TYPE_LOCAL_GPU",
    "TYPE_RDMA",
    "TYPE_TCP",
    "AbortedError",
    "AsyncClient",
    "AuthError",
    "Batch",
    "Blocks",
    "Client",
    "ClientConfig",
    "Code",
    "ConfigError",
    "ConnectError",
    "CorruptError",
    "DisableTorchCaching",
    "DisconnectedError",
    "InfiniStoreError",
    "InfiniStoreException",
    "InfiniStoreKeyNotFound",
    "InfinityConnection",
    "KeyNotFound",
    "LeaseExpiredError",
    "LinkError",
    "Logger",
    "Lookup",
    "OutOfMemoryError",
    "Outcomes",
    "OverloadedError",
    "ProtocolError",
    "QuotaError",
    "RequestTimeoutError",
    "Segments",
    "ServerConfig",
    "SetupError",
    "SizeMismatchError",
    "StoreError",
    "TooLargeError",
    "UsageError",
    "__version__",
    "check_supported",
    "connect",
    "connect_async",
    "evict_cache",
    "get_kvmap_len",
    "purge_kv_map",
    "register_server",
]

# Of the original package, for who imports it only: loaded when asked for.
_MODULES = ("compat", "lib", "server")


def __getattr__(name: str) -> Any:
    if name == "_infinistore":
        return import_module("infinistore.server.embedded")
    if name in _MODULES:
        return import_module(f"infinistore.{name}")
    if name in __all__:
        return getattr(import_module("infinistore.compat"), name)
    raise AttributeError(f"module 'infinistore' has no attribute {name!r}")
