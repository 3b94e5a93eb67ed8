"""The connection itself: its life, its registered memory, and blocks at pointers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from infinistore.client.results import Batch, raise_if
from infinistore.client.sync import Client, connect
from infinistore.compat.bags import ClientConfig
from infinistore.compat.long_keys import keys_of
from infinistore.compat.memory import RegisteredMemory
from infinistore.compat.words import TYPE_LOCAL_GPU, TYPE_RDMA, Logger
from infinistore.errors import SizeMismatchError, UsageError

logger = logging.getLogger(__name__)

Pairs = Sequence[tuple[str, int]]  # keys, and where their blocks begin

_has_told_transport = False


class Link:
    """What all forms of the original's API share."""

    def __init__(self, config: ClientConfig) -> None:
        config.verify()
        Logger.set_log_level(config.log_level)
        is_here = config.host_addr in ("127.0.0.1", "localhost")
        if config.connection_type == TYPE_LOCAL_GPU and not is_here:
            raise UsageError("Local GPU connection must be to localhost")
        self.config = config
        self.conn: Client | None = None
        self.rdma_connected = False
        self.local_connected = False
        self._memory = RegisteredMemory()

    def connect(self) -> None:
        """Raises `ConnectError` and its like; connected already: an error, or over TCP nothing."""
        if self.local_connected:
            raise UsageError("Already connected to local instance")
        if self.rdma_connected:
            raise UsageError("Already connected to remote instance")
        if self.conn is not None:
            return
        settings = self.config.own_settings()
        transport = self.config.choose_transport(settings.pop("transport", None))
        token = settings.pop("token", None)
        url, namespace = self.config.url, self.config.namespace
        self.conn = connect(url, namespace, token, transport=transport, **settings)
        self.conn.expect_coroutines()
        self.rdma_connected = self.config.connection_type == TYPE_RDMA
        self.local_connected = self.config.connection_type == TYPE_LOCAL_GPU
        if self.rdma_connected:
            _tell_transport(self.conn.transport)

    def close(self) -> None:
        """Ends the connection; a second call does nothing, and connect() may follow."""
        conn, self.conn = self.conn, None
        self.rdma_connected = self.local_connected = False
        if conn is not None:
            conn.close()

    close_connection = close

    @property
    def client(self) -> Client:
        """This package's own client of it."""
        conn = self.conn
        if conn is None:
            raise UsageError("Not connected to any instance; call connect() first")
        return conn

    @property
    def rdma_client(self) -> Client:
        """The same, for what only a connection of TYPE_RDMA can do."""
        self._check_rdma()
        return self.client

    def _check_rdma(self) -> None:
        if not self.rdma_connected:
            raise UsageError("this function is only valid for connected rdma")

    def register_mr(self, ptr: Any, size: int | None = None) -> int:
        """Makes memory known (a pointer and a size, or a tensor); 0. Again: replaces it."""
        self._check_rdma()
        self._memory.register(ptr, size)
        return 0

    def _write(self, blocks: Pairs, block_size: int, ptr: int) -> Batch:
        client, segments = self.rdma_client, self._segments(blocks, block_size, ptr)
        keys = keys_of(key for key, _ in blocks)
        return client.write_segments(keys, segments, on_exists="replace")

    def _read(self, blocks: Pairs, block_size: int, ptr: int) -> Batch:
        client, segments = self.rdma_client, self._segments(blocks, block_size, ptr)
        return client.read_segments(keys_of(key for key, _ in blocks), segments, up_to=True)

    def _segments(self, blocks: Pairs, block_size: int, ptr: int) -> Any:
        return self._memory.segments(ptr, [offset for _, offset in blocks], block_size)


def check_read(batch: Batch, block_size: int) -> None:
    """Raises what went wrong with a read of whole values, once it is done."""
    raise_if(batch.error())
    longest = max(batch.value_bytes, default=0)
    if longest > block_size:
        raise SizeMismatchError(
            f"Failed to read to infinistore, ret = 400: a value has {longest} bytes and its block "
            f"{block_size}; give blocks that hold it"
        )


def _tell_transport(transport: str) -> None:
    global _has_told_transport
    if transport != "rdma" and not _has_told_transport:
        _has_told_transport = True
        logger.warning("TYPE_RDMA: there is no RDMA between here and there; %s is used", transport)
