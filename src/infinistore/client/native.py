"""What a session needs of whoever moves its keys: the native client of one server has it, and so
has a cluster, whose session then is like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from infinistore import _native


class NativeOperation(Protocol):
    """Something in flight."""

    @property
    def id(self) -> int:
        """Its number; `take_completed` tells it."""

    @property
    def done(self) -> bool:
        """Whether it has ended, and no memory of the caller's is used any more."""

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it ended in time."""

    def cancel(self) -> None:
        """Asks for an early end."""

    @property
    def failure(self) -> tuple[int, str]:
        """Code and message of what failed as a whole; after the end."""

    @property
    def outcomes(self) -> bytes:
        """A code for each key; after the end."""


class NativeBatch(NativeOperation, Protocol):
    """A put or get."""

    @property
    def value_bytes(self) -> list[int]:
        """Of a get up to a size, after the end: how long each value that was found is."""

    def key(self, index: int) -> bytes:
        """The key at that place."""


class NativeCall(NativeOperation, Protocol):
    """A small request."""

    @property
    def blocks(self) -> int:
        """Of a match: blocks found, from the first on."""

    @property
    def lease_ids(self) -> list[int]:
        """Of a match: the leases on what was found."""

    @property
    def counters(self) -> dict[str, int]:
        """Of stats."""


class NativeClient(Protocol):
    """A server, or a cluster of them."""

    def put(
        self,
        pack: _native.Pack,
        value_bytes: int,
        value_offset: int,
        on_exists: int,
        device: int,
        stream: int,
        by_copy_engine: bool,
        kept: object | None,
    ) -> NativeBatch:
        """Writes a range of each value."""

    def get(
        self,
        pack: _native.Pack,
        value_bytes: int,
        value_offset: int,
        wait_ms: int,
        lease_id: int,
        device: int,
        stream: int,
        kept: object | None,
    ) -> NativeBatch:
        """Reads a range of each value."""

    def match(self, pack: _native.Pack, group: int, lease_ms: int) -> NativeCall:
        """Counts blocks from the first on, and leases them unless `lease_ms` is 0."""

    def exists(self, pack: _native.Pack) -> NativeCall:
        """Which keys are there."""

    def erase(self, pack: _native.Pack) -> NativeCall:
        """Erases keys."""

    def abort(self, pack: _native.Pack) -> NativeCall:
        """Drops what this client has staged."""

    def stats(self) -> NativeCall:
        """Asks for counters."""

    def post_lease(self, lease_ids: Sequence[int], lease_ms: int) -> None:
        """Renews leases, or with 0 releases them."""

    def rouse(self) -> None:
        """Wakes who moves bytes: a batch will come soon."""

    def prepare(self, device: int) -> None:
        """Shows the pool to a CUDA device."""

    def keep(self, address: int, size: int, /) -> None:
        """Memory that stays where it is: its registration with a device is kept."""

    def forget(self, address: int, /) -> None:
        """Ends `keep`, once nothing is in flight there."""

    def server(self) -> dict[str, Any]:
        """What was said at the last connection."""

    def counters(self) -> dict[str, int]:
        """This client's own counters."""

    def completion_fd(self) -> int:
        """Readable while `take_completed` has something to tell."""

    def take_completed(self) -> list[int]:
        """The ids of what has ended since the last call."""

    def close(self) -> None:
        """Ends everything."""

    def close_after_fork(self) -> None:
        """In a forked child: lets go of the sockets."""
