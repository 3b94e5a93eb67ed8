"""What both clients share: checks arguments, submits, interprets; never waits."""

from __future__ import annotations

import difflib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from operator import length_hint
from typing import Any, NoReturn

from infinistore import _native
from infinistore.client.address import is_secure, parse_address
from infinistore.client.arguments import (
    U64_MAX,
    Key,
    Pairs,
    answered,
    check_range,
    check_text,
    keys_of,
    listed,
    milliseconds_of,
    parsed,
)
from infinistore.client.native import NativeCall, NativeClient
from infinistore.client.regions import (
    HOST,
    Blocks,
    Place,
    Region,
    Segments,
    offsets_of,
    page_bytes_of,
    place_of,
    region_of,
)
from infinistore.client.results import Batch, Lookup, failure_of, raise_if
from infinistore.client.waiters import Waiters
from infinistore.config import ClientConfig, load, settings
from infinistore.errors import (
    Code,
    ConfigError,
    ConnectError,
    UsageError,
    error_for,
)

# As on the wire. "copy" is between the nodes of a cluster: docs/protocol.md.
ON_EXISTS = {"keep": 0, "replace": 1, "copy": 2}
NAMESPACE_BYTES_MAX = 512
TOKEN_BYTES_MAX = 512
# Failures of batches that nobody has asked for, kept at most.
_FAILED_KEPT_MAX = 1024
_LONG = 1024  # keys

# By a code's byte: comparing with an enum's member would take most of the time of a large call.
_IS_OK = [code == Code.OK for code in range(256)]


_live: weakref.WeakSet[Session] = weakref.WeakSet()
_watches_fork = False


class Session:
    """One connection's calls, for any thread; a `Client` or `AsyncClient` waits for their ends."""

    def __init__(self, native: NativeClient, url: str, read_only: bool = False) -> None:
        self.url = url
        self._read_only = read_only
        self._native = native
        self._pid = os.getpid()
        self._is_closed = False
        self._lock = threading.Lock()
        self._kept: dict[int, Any] = {}  # registered memory, by its address
        # Not waited for, in the order of submission; a dict, so that any one leaves at once.
        self._pending: dict[Batch, None] = {}
        self._waiters: Waiters | None = None  # of coroutines, once there was one
        _watch(self)

    # ---- puts and gets ----

    def put_blocks(
        self,
        cache: Any,
        blocks: Pairs | Blocks,
        page_size: int,
        *,
        unit: str,
        value_bytes: int | None,
        value_offset: int,
        on_exists: str,
        parents: Sequence[Key | None] | None,
        depths: Sequence[int] | None,
    ) -> Batch:
        """See `Client.write_cache`."""
        self._check_may_write()
        pack, page_bytes, region = self._place(cache, blocks, page_size, unit, writable=False)
        held = region.place, region.keep
        return self._put(
            pack, page_bytes, held, value_bytes, value_offset, on_exists, parents, depths
        )

    def get_blocks(
        self,
        cache: Any,
        blocks: Pairs | Blocks,
        page_size: int,
        *,
        unit: str,
        value_bytes: int | None,
        value_offset: int,
        wait_s: float,
        lease_id: int,
        up_to: bool,
    ) -> Batch:
        """See `Client.read_cache`."""
        pack, page_bytes, region = self._place(cache, blocks, page_size, unit, writable=True)
        held = region.place, region.keep
        return self._get(pack, page_bytes, held, value_bytes, value_offset, wait_s, lease_id, up_to)

    def put_segments(
        self,
        keys: Sequence[Key],
        segments: Segments,
        *,
        value_bytes: int | None,
        value_offset: int,
        on_exists: str,
        parents: Sequence[Key | None] | None,
        depths: Sequence[int] | None,
    ) -> Batch:
        """See `Client.write_segments`."""
        self._check_may_write()
        pack, range_bytes = self._place_segments(keys, segments)
        held = place_of(segments), segments.keep
        return self._put(
            pack, range_bytes, held, value_bytes, value_offset, on_exists, parents, depths
        )

    def get_segments(
        self,
        keys: Sequence[Key],
        segments: Segments,
        *,
        value_bytes: int | None,
        value_offset: int,
        wait_s: float,
        lease_id: int,
        up_to: bool,
    ) -> Batch:
        """See `Client.read_segments`."""
        pack, range_bytes = self._place_segments(keys, segments)
        held = place_of(segments), segments.keep
        return self._get(
            pack, range_bytes, held, value_bytes, value_offset, wait_s, lease_id, up_to
        )

    def _place(
        self, cache: Any, blocks: Pairs | Blocks, page_size: int, unit: str, *, writable: bool
    ) -> tuple[_native.Pack, int, Region]:
        self.check_open()
        region = region_of(cache, writable=writable)
        self._rouse(region.place, blocks.keys if isinstance(blocks, Blocks) else blocks)
        element_bytes, page_bytes = page_bytes_of(region, page_size, unit)
        if isinstance(blocks, Blocks):
            pack = keys_of(blocks.keys)
            offsets = offsets_of(blocks.offsets)
        else:
            pack = parsed(_native.Pack.from_blocks, listed(blocks, "blocks"))
            offsets = None
        parsed(pack.place, region.address, region.size_bytes, element_bytes, page_bytes, offsets)
        return pack, page_bytes, region

    def _place_segments(self, keys: Sequence[Key], segments: Segments) -> tuple[_native.Pack, int]:
        self.check_open()
        if not isinstance(segments, Segments):
            raise UsageError(f"segments is a {type(segments).__name__}; give infinistore.Segments")
        self._rouse(place_of(segments), keys)
        pack = keys_of(keys)
        addresses, per_key = segments.layout(len(pack))
        parsed(pack.place_segments, addresses, per_key, segments.segment_bytes)
        return pack, per_key * segments.segment_bytes

    def _rouse(self, place: Place, listing: object) -> None:
        # To read a long list takes as long as waking who sleeps; a GPU then waits for neither.
        if place != HOST and length_hint(listing) >= _LONG:
            self._native.rouse()

    def _put(
        self,
        pack: _native.Pack,
        range_bytes: int,
        held: tuple[Place, Any],
        value_bytes: int | None,
        value_offset: int,
        on_exists: str,
        parents: Sequence[Key | None] | None,
        depths: Sequence[int] | None,
    ) -> Batch:
        if on_exists not in ON_EXISTS:
            raise UsageError(f"on_exists is {on_exists!r}; give 'keep' or 'replace'")
        if value_bytes is None:
            if value_offset:
                raise UsageError(
                    f"value_offset is {value_offset} but value_bytes is not given; a part of a "
                    "value is written with the size of the whole"
                )
            value_bytes = range_bytes
        check_range(range_bytes, value_bytes, value_offset)
        if parents is not None or depths is not None:
            count = len(pack)
            chain = [None] * count if parents is None else list(parents)
            levels = [0] * count if depths is None else list(depths)
            parsed(pack.set_chain, chain, levels)
        how = ON_EXISTS[on_exists]
        place, keep = held
        is_told = self._waiters is not None
        native = answered(self._native.put, pack, value_bytes, value_offset, how, *place, keep)
        return self._remember(Batch(native, "write", self, is_told))

    def _get(
        self,
        pack: _native.Pack,
        range_bytes: int,
        held: tuple[Place, Any],
        value_bytes: int | None,
        value_offset: int,
        wait_s: float,
        lease_id: int,
        up_to: bool,
    ) -> Batch:
        if up_to:
            parsed(pack.set_up_to)
        check_range(range_bytes, value_bytes, value_offset)
        wait_ms = milliseconds_of(wait_s, "wait_s")
        (device, stream, _), keep = held
        size = value_bytes or 0
        is_told = self._waiters is not None
        native = answered(
            self._native.get, pack, size, value_offset, wait_ms, lease_id, device, stream, keep
        )
        return self._remember(Batch(native, "read", self, is_told))

    @property
    def waiters(self) -> Waiters:
        """For coroutines of any loops that wait for batches; not for an `AsyncClient`'s session."""
        with self._lock:
            if self._waiters is None:
                self._waiters = Waiters(self._native)
            return self._waiters

    def _remember(self, batch: Batch) -> Batch:
        if self._waiters is not None:
            self._waiters.drain()  # or what nobody waits for would pile up there
        with self._lock:
            pending = self._pending
            # Successes need no sync(): one who never calls it would pile them up without this.
            while pending:
                first = next(iter(pending))
                if not first.done:
                    break
                if not first.outcomes.all_ok and len(pending) <= _FAILED_KEPT_MAX:
                    break
                del pending[first]
            pending[batch] = None
        return batch

    def prepare_device(self, device: int) -> None:
        """See `Client.prepare_device`."""
        self.check_open()
        if isinstance(device, bool) or not isinstance(device, int) or device < 0:
            raise UsageError(f"device is {device!r}; give the number of a CUDA device")
        answered(self._native.prepare, device)

    def forget(self, batch: Batch) -> None:
        """The caller has seen this batch's outcomes: `sync()` says nothing of it."""
        with self._lock:
            self._pending.pop(batch, None)  # None: seen before

    def take_pending(self) -> list[Batch]:
        """All batches that were not waited for; the next call begins anew."""
        with self._lock:
            taken = list(self._pending)
            self._pending.clear()
        return taken

    def put_back(self, batches: list[Batch]) -> None:
        """Undoes `take_pending`."""
        with self._lock:
            self._pending = {**dict.fromkeys(batches), **self._pending}

    # ---- small calls ----

    def lookup(self, keys: Sequence[Key], group: int, lease_s: float | None) -> Lookup:
        """See `Client.lookup`."""
        self.check_open()
        if isinstance(group, bool) or not isinstance(group, int) or not 1 <= group <= 4096:
            raise UsageError(f"group is {group!r}; give 1 to 4096 keys for a block")
        pack = keys_of(keys)
        if len(pack) % group:
            raise UsageError(
                f"{len(pack)} keys are no whole number of blocks of {group} (group) keys"
            )
        lease_ms = 0 if lease_s is None else max(1, milliseconds_of(lease_s, "lease_s"))
        if not len(pack):
            return Lookup(None, group)
        return Lookup(self._native.match(pack, group, lease_ms), group)

    def exists(self, keys: Sequence[Key]) -> NativeCall | None:
        """None: there is nothing to ask."""
        return self._call(keys, self._native.exists)

    def erase(self, keys: Sequence[Key]) -> NativeCall | None:
        """None: there is nothing to ask."""
        self._check_may_write()
        return self._call(keys, self._native.erase)

    def abort(self, keys: Sequence[Key]) -> NativeCall | None:
        """None: there is nothing to ask."""
        self._check_may_write()
        return self._call(keys, self._native.abort)

    def _call(
        self, keys: Sequence[Key], submit: Callable[[_native.Pack], NativeCall]
    ) -> NativeCall | None:
        self.check_open()
        if self._waiters is not None:
            self._waiters.drain()
        pack = keys_of(keys)
        return submit(pack) if len(pack) else None

    def stats(self) -> NativeCall:
        """Asks for the server's counters."""
        self.check_open()
        return self._native.stats()

    def post_lease(self, lease_ids: Sequence[int], lease_s: float | None) -> None:
        """Renews, or with None releases; the answer is not waited for."""
        ids = [int(lease_id) for lease_id in lease_ids]
        if any(not 0 <= lease_id <= U64_MAX for lease_id in ids):
            raise UsageError(f"lease ids are {ids}; give those that lookups returned")
        lease_ms = 0 if lease_s is None else max(1, milliseconds_of(lease_s, "lease_s"))
        ids = [lease_id for lease_id in ids if lease_id]
        if ids and not self._is_closed and os.getpid() == self._pid:
            self._native.post_lease(ids, lease_ms)

    # ---- interpreting ----

    @staticmethod
    def take_exists(call: NativeCall | None) -> list[bool]:
        """Whether each key is there. Raises what went wrong."""
        return [_IS_OK[code] for code in _outcomes(call)]

    @staticmethod
    def take_count(call: NativeCall | None) -> int:
        """How many keys the call had an effect on. Raises what went wrong."""
        return _outcomes(call).count(Code.OK)

    def take_stats(self, call: NativeCall) -> dict[str, int]:
        """The server's counters, and this client's own as client_*. Raises what went wrong."""
        _outcomes(call)
        own = {f"client_{name}": value for name, value in self._native.counters().items()}
        return {**call.counters, **own}

    # ---- memory that is kept ----

    def register(self, cache: Any) -> None:
        """Raises `UsageError` if a part of it is registered already."""
        self.check_open()
        region = region_of(cache, writable=False)
        if region.place.device < 0:
            answered(self._native.keep, region.address, region.size_bytes)
            self._kept[region.address] = region

    def unregister(self, cache: Any) -> None:
        """What is in flight keeps the memory as long as it needs it."""
        self.check_open()
        address = region_of(cache, writable=False).address
        if address in self._kept:
            self._native.forget(address)
            del self._kept[address]

    # ---- the connection ----

    def server(self) -> dict[str, Any]:
        """What the server said of itself at the last connection."""
        self.check_open()
        return self._native.server()

    @property
    def native(self) -> NativeClient:
        """For whoever waits."""
        return self._native

    def check_open(self) -> None:
        """Raises `UsageError` after close() and in a forked child."""
        if self._is_closed:
            raise UsageError("this client is closed; connect() makes a new one")
        if os.getpid() != self._pid:
            raise UsageError(
                "this client was made before fork(), and its threads stayed in the parent; call "
                "connect() in the child"
            )

    def _check_may_write(self) -> None:
        if self._read_only:
            raise UsageError(
                "this client only reads: it was connected with read_only=True (or "
                "INFINISTORE_READ_ONLY); connect without it to write"
            )

    @property
    def is_closed(self) -> bool:
        """Whether close() has begun."""
        return self._is_closed

    def begin_close(self) -> bool:
        """Refuses further calls. False: there is nothing to close (any more)."""
        if self._is_closed:
            return False
        self._is_closed = True
        self.take_pending()
        return os.getpid() == self._pid

    def after_fork(self) -> None:
        """In the child: lets go of the sockets, so that the server sees the parent's end."""
        if not self._is_closed:
            self._native.close_after_fork()

    def __reduce__(self) -> NoReturn:
        raise UsageError("a client cannot be pickled; pass the address, and connect() there")


def open_native(
    url: str, namespace: str, token: str | None, transport: str | None, others: dict[str, Any]
) -> Callable[[], Session]:
    """Checks the arguments; what it returns connects, which waits. Raises `UsageError`."""
    parse_address(url)
    dial = dialer(namespace, token, transport, others)
    read_only = load(ClientConfig, others).read_only
    return lambda: Session(dial(url), url, read_only)


def dialer(
    namespace: str, token: str | None, transport: str | None, others: dict[str, Any]
) -> Callable[[str], _native.Client]:
    """Checks all arguments but the URL, which what it returns takes; it connects, and waits."""
    known = {setting.field for setting in settings(ClientConfig)}
    for name in others:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = (
                f"; did you mean {close[0]}?" if close else f"; known: {', '.join(sorted(known))}"
            )
            raise ConfigError(f"connect() has no setting {name!r}{hint}")
    config = load(ClientConfig, {**others, "token": token, "transport": transport})
    if not isinstance(namespace, str) or not namespace:
        raise UsageError(f"namespace is {namespace!r}; give a text, or leave it away")
    check_text(namespace, "namespace", NAMESPACE_BYTES_MAX)
    check_text(config.token, "token", TOKEN_BYTES_MAX)

    def dial(url: str) -> _native.Client:
        host, port = parse_address(url)
        try:
            return _native.connect(host, port, namespace, _client_name(), is_secure(url), config)
        except _native.Failure as failure:
            code, message = failure.args
            if code == Code.DISCONNECTED:
                raise ConnectError(message) from None
            raise error_for(code, f"cannot connect to {url}: {message}") from None

    return dial


def _client_name() -> str:
    program = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return f"{program or 'python'}:{os.getpid()}".encode(errors="replace")[-120:].decode(
        errors="replace"
    )


def _outcomes(call: NativeCall | None) -> bytes:
    if call is None:
        return b""
    raise_if(failure_of(call))
    return call.outcomes


def _watch(session: Session) -> None:
    global _watches_fork
    _live.add(session)
    if not _watches_fork:  # not at import, which has no effect on its process
        _watches_fork = True
        os.register_at_fork(after_in_child=_forget_all)


def _forget_all() -> None:
    for session in list(_live):
        session.after_fork()
    _live.clear()
