"""InfiniStore: a memory pool for the KV caches of LLM inference.

with infinistore.connect("infinistore://host:22345") as store:
    store.write_cache(cache, [("key", 0)], page_size=4096)
    store.sync()
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from infinistore.client.aio import AsyncClient
from infinistore.client.regions import Blocks, Segments
from infinistore.client.results import Batch, Lookup, Outcomes
from infinistore.client.sync import Client
from infinistore.cluster.connect import connect, connect_async
from infinistore.config import ClientConfig, ServerConfig
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
    RequestTimeoutError,
    SetupError,
    SizeMismatchError,
    StoreError,
    TooLargeError,
    UsageError,
)

try:
    __version__ = version("infinistore")
except PackageNotFoundError:  # run from its sources
    __version__ = "0"

__all__ = [
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
    "DisconnectedError",
    "InfiniStoreError",
    "KeyNotFound",
    "LeaseExpiredError",
    "LinkError",
    "Lookup",
    "OutOfMemoryError",
    "Outcomes",
    "OverloadedError",
    "ProtocolError",
    "RequestTimeoutError",
    "Segments",
    "ServerConfig",
    "SetupError",
    "SizeMismatchError",
    "StoreError",
    "TooLargeError",
    "UsageError",
    "__version__",
    "connect",
    "connect_async",
]
