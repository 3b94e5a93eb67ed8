"""Redis: a server without persistence, and one connection of redis-py with hiredis."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infinistore.bench.peers.place import (
    Place,
    free_port,
    library_path,
    python_path,
    wait_for_port,
)
from infinistore.bench.process import ChildProcess
from infinistore.bench.rounds import each_timed

if TYPE_CHECKING:
    from infinistore.bench.child import Fleet
    from infinistore.bench.figures import Case
    from infinistore.bench.memory import Arena, Order


@contextlib.contextmanager
def start(place: Place, name: str, transport: str, keys_at_once: bool) -> Iterator[Fleet]:
    """A server of its own, so that no two contenders share one thread."""
    site = place.site("redis")
    with (
        tempfile.TemporaryDirectory(prefix="infinistore-") as folder,
        contextlib.ExitStack() as end,
    ):
        port, path = free_port(), f"{folder}/socket"
        server = ChildProcess(
            "redis-server",
            [
                *(str(site / "usr/bin/redis-server"), "--bind", "127.0.0.1", "--port", str(port)),
                *("--unixsocket", path, "--dir", folder, "--save", "", "--appendonly", "no"),
                *("--logfile", str(Path(folder) / "log")),
            ],
            place.log(f"{name} server"),
            environment={"LD_LIBRARY_PATH": library_path(site)},
        )
        end.callback(server.close)
        wait_for_port(server, port)
        fleet = place.fleet(
            name,
            "infinistore.bench.peers.redis:RedisContender",
            {
                "port": port if transport == "tcp" else None,
                "path": path,
                "keys_at_once": keys_at_once,
            },
            far_pids=(server.pid,),
            environment={"PYTHONPATH": python_path(site)},
        )
        end.callback(fleet.close)
        yield fleet


class RedisContender:
    """`keys_at_once`: MSET and MGET; otherwise SET and GET in pipelines. Each batch is waited for.

    A read ends when the bytes are in the arena's target, as it does for every contender.
    """

    name = "redis"
    far_pids: tuple[int, ...] = ()

    def __init__(self, arena: Arena, *, port: int | None, path: str, keys_at_once: bool) -> None:
        self._arena = arena
        self._client = _connect(port, path)
        self._client.ping()
        self._write_batch = self._mset if keys_at_once else self._pipe_sets
        self._read_batch = self._mget if keys_at_once else self._pipe_gets

    def prepare(self, case: Case, order: Order) -> None:
        size, step = case.block_bytes, case.batch_blocks
        source, target = self._arena.source.data, self._arena.target.data
        keys = [f"{os.getpid()}-{index}".encode() for index in range(case.block_count)]
        froms = [source[at : at + size] for at in order.source.tolist()]
        tos = [target[at : at + size] for at in order.target.tolist()]
        starts = range(0, case.block_count, step)
        self._writes = [
            partial(self._write_batch, keys[at : at + step], froms[at : at + step]) for at in starts
        ]
        self._reads = [
            partial(self._read_batch, keys[at : at + step], tos[at : at + step]) for at in starts
        ]

    def write(self) -> Sequence[float]:
        return each_timed(self._writes)

    def read(self) -> Sequence[float]:
        return each_timed(self._reads)

    def _pipe_sets(self, keys: list[bytes], values: list[memoryview]) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            for key, value in zip(keys, values, strict=True):
                pipe.set(key, value)
            pipe.execute()

    def _pipe_gets(self, keys: list[bytes], targets: list[memoryview]) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.get(key)
            _place(pipe.execute(), targets)

    def _mset(self, keys: list[bytes], values: list[memoryview]) -> None:
        self._client.mset(dict(zip(keys, values, strict=True)))

    def _mget(self, keys: list[bytes], targets: list[memoryview]) -> None:
        _place(self._client.mget(keys), targets)

    def clean(self) -> None:
        self._client.flushall()

    def close(self) -> None:
        self._client.close()


def _place(values: list[bytes], targets: list[memoryview]) -> None:
    for value, target in zip(values, targets, strict=True):
        target[:] = value


def _connect(port: int | None, path: str) -> Any:
    import redis
    from redis._parsers import Encoder
    from redis.connection import PythonRespSerializer

    # hiredis parses the answers. What it packs it copies, twice for MSET: far slower for blocks.
    cutoff_bytes = 6000
    encoder = Encoder("utf-8", "strict", decode_responses=False)
    packer = PythonRespSerializer(cutoff_bytes, encoder.encode)
    where: dict[str, Any] = (
        {"connection_class": redis.UnixDomainSocketConnection, "path": path}
        if port is None
        else {"host": "127.0.0.1", "port": port}
    )
    pool = redis.ConnectionPool(max_connections=1, command_packer=packer, **where)
    return redis.Redis(connection_pool=pool)
