"""The native half of InfiniStore; not an interface for users."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def bench_copy_blocks(nontemporal: bool, targets: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], sources: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], block_bytes: int) -> None:
    """
    Copies block i from address sources[i] to address targets[i], on this thread.
    """

def bench_serve_streams(sockets: Sequence[int], memory: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> int:
    """
    Serves bench_move_blocks of another process until its sockets close; a Code.
    """

def bench_move_blocks(sockets: Sequence[int], to_far: bool, addresses: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], block_bytes: int) -> int:
    """Sends blocks to, or fetches them from, bench_serve_streams; a Code."""

class GpuCopyLoop:
    """The copy kernel alone; `host` must stay mapped as long as it lives."""

    def run(self, device: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], offsets: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], block_bytes: int, to_host: bool, sums: bool, thread_blocks: int, threads: int) -> int:
        """Nanoseconds of one launch that moves every block."""

def gpu_copy_loop(device: int, host: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> GpuCopyLoop: ...

def bench_echo(source: int, sink: int, message_bytes: int) -> int:
    """Sends back what comes, until the stream ends; a Code."""

def bench_round_trips(sink: int, source: int, message_bytes: int, taken_ns: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]) -> int:
    """Fills taken_ns with the times of round trips to bench_echo; a Code."""

class Failure(Exception):
    pass

def address_of(buffer: object) -> int: ...

def plain_buffer(array: object, writable: bool) -> tuple[int, int, int] | None: ...

def dlpack_memory(capsule: object) -> tuple[int, int, int, int, int] | None: ...

class Pack:
    """Keys and places of a batch, checked."""

    @staticmethod
    def from_keys(keys: list) -> Pack: ...

    @staticmethod
    def from_blocks(blocks: list) -> Pack: ...

    def __len__(self) -> int: ...

    def place(self, base: int, cache_bytes: int, element_bytes: int, page_bytes: int, offsets: object | None) -> None: ...

    def place_segments(self, addresses: object, segments_per_key: int, segment_bytes: int) -> None: ...

    def set_chain(self, parents: list, depths: list) -> None: ...

    def groups(self) -> bytes:
        """The hash of each key's group, as uint64."""

    def part(self, indexes: object) -> Pack:
        """A copy with these keys, in this order."""

    def key(self, index: int) -> bytes: ...

    @property
    def range_bytes(self) -> int:
        """Bytes of each key's range."""

    def set_up_to(self) -> None: ...

class Batch:
    """A put or get in flight."""

    @property
    def id(self) -> int: ...

    @property
    def done(self) -> bool: ...

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it ended in time."""

    def cancel(self) -> None: ...

    @property
    def failure(self) -> tuple[int, str]:
        """Code and message of the first failure; after the end."""

    @property
    def outcomes(self) -> bytes:
        """A code for each key; after the end."""

    def key(self, index: int) -> bytes: ...

    @property
    def value_bytes(self) -> list[int]:
        """After a get with set_up_to(): how long each value that was found is."""

class Call:
    """A small request in flight."""

    @property
    def id(self) -> int: ...

    @property
    def done(self) -> bool: ...

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it ended in time."""

    def cancel(self) -> None: ...

    @property
    def failure(self) -> tuple[int, str]:
        """Code and message of the first failure; after the end."""

    @property
    def outcomes(self) -> bytes:
        """A code for each key; after the end."""

    @property
    def blocks(self) -> int: ...

    @property
    def lease_ids(self) -> list[int]: ...

    @property
    def counters(self) -> dict: ...

class Client:
    """A server, as a program sees it."""

    def put(self, pack: Pack, value_bytes: int, value_offset: int, on_exists: int, device: int, stream: int, by_copy_engine: bool, kept: object | None) -> Batch: ...

    def get(self, pack: Pack, value_bytes: int, value_offset: int, wait_ms: int, lease_id: int, device: int, stream: int, kept: object | None) -> Batch: ...

    def prepare(self, device: int) -> None: ...

    def rouse(self) -> None: ...

    def keep(self, address: int, bytes: int) -> None: ...

    def forget(self, address: int) -> None: ...

    def match(self, pack: Pack, group: int, lease_ms: int) -> Call: ...

    def exists(self, pack: Pack) -> Call: ...

    def erase(self, pack: Pack) -> Call: ...

    def abort(self, pack: Pack) -> Call: ...

    def stats(self) -> Call: ...

    def post_lease(self, lease_ids: Sequence[int], lease_ms: int) -> None: ...

    def server(self) -> dict: ...

    def counters(self) -> dict: ...

    def completion_fd(self) -> int:
        """Readable while take_completed() has something to tell."""

    def take_completed(self) -> list[int]: ...

    def close(self) -> None: ...

    def close_after_fork(self) -> None: ...

def gpu_of(address: int) -> int:
    """The CUDA device whose memory this is."""

def connect(host: str, port: int, space: str, client_name: str, tls: bool, config: object) -> Client: ...

class Scrub:
    """A walk over all values that compares them with their sums."""

    def step(self, bytes_max: int) -> bool:
        """Sums so many bytes at most; False: all is seen."""

    def found(self) -> dict:
        """Values and bytes seen; how many were damaged and dropped, and which."""

class Server:
    """The store and the threads that serve it."""

    def __init__(self, options: object) -> None: ...

    def start(self) -> dict:
        """Serves; raises RuntimeError naming what is wrong and the remedy."""

    def stop(self, drain_s: float) -> None:
        """Ends all sessions, after at most `drain_s`."""

    def snapshot(self) -> dict:
        """Every counter at this moment."""

    def evict(self, bytes_wanted: int) -> int:
        """Evicts so many bytes if it can; the number that it did."""

    def purge(self, namespace: str | None, below: bool = False) -> int:
        """
        Erases a namespace's keys (`below`: of all whose names begin so), or all; how many.
        """

    def key_count(self, namespace: str | None, below: bool = False) -> int:
        """
        The keys of a namespace (`below`: of all whose names begin so), or of all.
        """

    def tenant_use(self, tenant: str) -> dict:
        """
        What a tenant's namespaces hold of the pool, and what was evicted for its quota.
        """

    def reload_certificate(self) -> str:
        """
        Reads it again, for connections to come; why the old one stays, empty if it does not.
        """

    def recent_log(self) -> list:
        """The newest warnings and errors, oldest first."""

    def check_integrity(self) -> str:
        """
        What is wrong with the books, empty if nothing; everybody waits meanwhile.
        """

    def explain(self, namespace: str, keys: Sequence[bytes]) -> list:
        """What became of each key; of at most 1,024."""

    def namespaces(self) -> list:
        """Keys, bytes, hits and misses of each, and when it was used last."""

    def hit_curve(self, pool_bytes: Sequence[int]) -> dict:
        """Hit rates that pools of such sizes would have had."""

    def scrub(self) -> Scrub:
        """A new walk over all values."""

    def hottest(self, count_max: int) -> list:
        """
        (namespace, key, value_bytes, bytes_per_s) of what it serves most, the hottest first.
        """

    def list_keys(self, cursor: int, count_max: int) -> tuple:
        """
        The next cursor (0: the end; begin at 0) and rows as of hottest(), some of all keys'.
        """

    def begin_move(self, namespace: str, keys: Sequence[bytes]) -> int:
        """
        Notes which values these keys have; a number for end_move(), 0: too much is moving.
        """

    def end_move(self, id: int) -> list[bool]:
        """Whether each key has had that value all the time."""

    def staged(self, count_max: int = 1000) -> list:
        """Values being written, at most so many."""

def checksum(data: bytes, position: int = 0) -> int: ...

class TestStore:
    def __init__(self, pool_bytes: int, policy: str = 'lru', staged_bytes_max: int = 0, shard_count: int = 16) -> None: ...

    def reserve(self, space: int, key: bytes, value_bytes: int, replaces: bool = False) -> tuple[int, int]: ...

    def claim(self, arg0: int, arg1: int, arg2: int, /) -> int: ...

    def unclaim(self, arg0: int, arg1: int, arg2: int, /) -> None: ...

    def filled(self, arg0: int, arg1: int, arg2: bytes, /) -> None: ...

    def filled_ranges(self, arg: int, /) -> list[tuple[int, int]]: ...

    def is_complete(self, arg: int, /) -> bool: ...

    def seal(self, arg: int, /) -> int: ...

    def abort(self, arg: int, /) -> None: ...

    def quarantine(self, arg: int, /) -> int: ...

    def end_quarantine(self, arg: int, /) -> None: ...

    def find(self, arg0: int, arg1: bytes, /) -> int: ...

    def match_prefix(self, space: int, keys: Sequence[bytes], group: int = 1) -> tuple[int, list[int]]: ...

    def read(self, arg0: int, arg1: int, arg2: int, /) -> bytes: ...

    def value_bytes(self, arg: int, /) -> int: ...

    def range_checksum(self, arg0: int, arg1: int, arg2: int, /) -> tuple[int, int]: ...

    def flip(self, arg0: int, arg1: int, /) -> None: ...

    def scrub(self, arg: int, /) -> bool: ...

    def scrub_held_bytes(self) -> int: ...

    def end_scrub(self) -> tuple[int, int]: ...

    def drop_corrupt(self, arg: int, /) -> None: ...

    def release(self, arg: int, /) -> None: ...

    def intern(self, arg: str, /) -> int: ...

    def exists(self, arg0: int, arg1: bytes, /) -> bool: ...

    def is_written(self, arg0: int, arg1: bytes, /) -> bool: ...

    def erase(self, arg0: int, arg1: bytes, /) -> bool: ...

    def purge(self, arg: int, /) -> int: ...

    def evict(self, arg: int, /) -> int: ...

    def key_count(self, arg: int, /) -> int: ...

    def check_integrity(self) -> str: ...

    def counters(self) -> dict: ...

class TraceStore:
    def __init__(self, pool_bytes: int, policy: str, shard_count: int, reuse: Mapping[str, float] = {}) -> None: ...

    def prompt(self, blocks: Sequence[int], block_bytes: int) -> int: ...

    def put(self, block: int, value_bytes: int) -> int: ...

    def exists(self, block: int) -> bool: ...

    def free_and_evictions(self) -> tuple[int, int]: ...

    def hit_rates(self, pool_bytes: Sequence[int]) -> list[float]: ...

    def check_integrity(self) -> str: ...

def reuse_tuning() -> dict[str, float]: ...

def eviction_policies() -> list[str]: ...
