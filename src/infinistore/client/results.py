"""What became of a batch, key by key, and the handles that one waits on."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

from infinistore.errors import (
    Code,
    InfiniStoreError,
    KeyNotFound,
    RequestTimeoutError,
    UsageError,
    error_for,
)

if TYPE_CHECKING:
    from infinistore.client._session import Session
    from infinistore.client.native import NativeBatch, NativeCall

_CODES = tuple(Code)
_GOOD = bytes((Code.OK, Code.EXISTS))
# To a reader a value that does not match its checksum is as good as none; its bytes have been
# overwritten, though, while those of a missing one are untouched.
_ABSENT = bytes((Code.MISSING, Code.CORRUPT))
_NAMED_KEYS_MAX = 8


class Outcomes(Sequence[Code]):
    """The code of each key of a batch, in its order."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def __len__(self) -> int:
        return len(self._raw)

    @overload
    def __getitem__(self, index: int) -> Code: ...
    @overload
    def __getitem__(self, index: slice) -> Outcomes: ...
    def __getitem__(self, index: int | slice) -> Code | Outcomes:
        if isinstance(index, slice):
            return Outcomes(self._raw[index])
        return _CODES[self._raw[index]]

    def __iter__(self) -> Iterator[Code]:
        return (_CODES[code] for code in self._raw)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Outcomes):
            return self._raw == other._raw
        return isinstance(other, (list, tuple)) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(self._raw)

    def __repr__(self) -> str:
        counts = {code: self._raw.count(code) for code in sorted(set(self._raw))}
        shown = ", ".join(f"{_CODES[code].name}: {count}" for code, count in counts.items())
        return f"<Outcomes of {len(self)} keys: {shown}>"

    @property
    def all_ok(self) -> bool:
        """Whether each key was moved, or was there already."""
        return not self._raw.translate(None, _GOOD)

    @property
    def missing(self) -> list[int]:
        """Indexes of keys that were not there, or whose bytes were damaged (`Code.CORRUPT`)."""
        return self._indexes(_ABSENT)

    @property
    def failed(self) -> list[int]:
        """Indexes of keys that failed: neither moved, nor there already, nor missing."""
        return [] if self.all_ok else self._indexes(bytes(set(range(256)) - set(_GOOD + _ABSENT)))

    def _indexes(self, codes: bytes) -> list[int]:
        if self.all_ok:
            return []
        return [index for index, code in enumerate(self._raw) if code in codes]


class Batch:
    """A put or get in flight. It may be waited for, or left to `sync()`.

    The cache must not be changed (put) or used (get) until it is done; until then it is kept alive.
    """

    __slots__ = ("_is_told", "_native", "_outcomes", "_session", "_verb")

    def __init__(
        self, native: NativeBatch, verb: str, session: Session | None, is_told: bool = False
    ) -> None:
        self._native = native
        self._is_told = is_told  # its end is, to the session's waiters
        self._verb = verb  # for messages: "read" or "write"
        # Weakly: the session keeps its batches, and a cycle would delay the end of both.
        self._session = None if session is None else weakref.ref(session)
        self._outcomes: Outcomes | None = None

    @property
    def done(self) -> bool:
        """Whether every key has its outcome, and the cache is out of our hands."""
        return self._native.done

    def wait(self, timeout_s: float | None = None) -> Outcomes:
        """Waits for the end, which `sync()` then takes as known.

        Raises `RequestTimeoutError` if it does not come in `timeout_s`: the batch goes on.
        """
        self._await_end(timeout_s)
        session = None if self._session is None else self._session()
        if session is not None:
            session.forget(self)
        return self.outcomes

    def _await_end(self, timeout_s: float | None) -> None:
        if not self._native.wait(timeout_s):
            raise RequestTimeoutError(f"the {self._verb} is not done after {timeout_s} s")
        self._outcomes = Outcomes(self._native.outcomes)

    @property
    def native(self) -> NativeBatch:
        """For whoever waits in another way."""
        return self._native

    def cancel(self) -> None:
        """Asks for an early end: soon done, with `Code.CANCELLED` for the keys that were left."""
        self._native.cancel()

    @property
    def outcomes(self) -> Outcomes:
        """The code of each key; once done."""
        if self._outcomes is None:
            if not self._native.done:
                raise RequestTimeoutError(f"the {self._verb} is not done yet; wait() for it")
            self._outcomes = Outcomes(self._native.outcomes)
        return self._outcomes

    @property
    def value_bytes(self) -> list[int]:
        """Of a read `up_to`, once done: how long each value that was found is, as stored."""
        return self._native.value_bytes if self.done else []

    async def wait_async(self) -> Outcomes:
        """Waits as `wait()`, in a coroutine of any event loop. Cancelled, it cancels the batch."""
        session = None if self._session is None else self._session()
        if session is None:
            raise UsageError("the client of this batch is gone")
        await session.waiters.end_of(self._native, self._is_told)
        session.forget(self)
        return self.outcomes

    def error(self) -> InfiniStoreError | None:
        """The exception that tells of its failures, outcomes included; None: all is well."""
        outcomes = self.outcomes
        if outcomes.all_ok:
            return None
        failed = outcomes.failed
        if failed:
            error = self._failure(failed)
        else:
            keys = tuple(self._native.key(index) for index in outcomes.missing)
            error = KeyNotFound(f"{_count(len(keys))} not found: {_names(keys)}", keys)
        error.outcomes = outcomes
        return error

    def _failure(self, failed: list[int]) -> InfiniStoreError:
        outcomes = self.outcomes
        code, message = self._native.failure
        if code == Code.OK:  # refused key by key
            code = outcomes[failed[0]]
            message = Code(code).name.lower().replace("_", " ")
        keys = [self._native.key(index) for index in failed[:_NAMED_KEYS_MAX]]
        text = f"{self._verb} failed for {_count(len(failed))} of {len(outcomes)}: {message}"
        return error_for(code, f"{text} ({_names(keys, len(failed))})")

    def __reduce__(self) -> str:
        raise _no_pickle("a batch in flight")

    def __repr__(self) -> str:
        state = repr(self.outcomes) if self.done else "in flight"
        return f"<Batch ({self._verb}): {state}>"


class Lookup:
    """A question for a prefix in flight; never raises by itself."""

    __slots__ = ("_group", "_native")

    def __init__(self, native: NativeCall | None, group: int) -> None:
        self._native = native  # None: it asked for nothing
        self._group = group

    @property
    def done(self) -> bool:
        """Whether the answer, or a failure, is there."""
        return self._native is None or self._native.done

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for the answer: blocks from the first on. Raises what went wrong."""
        if self._native is not None and not self._native.wait(timeout_s):
            raise RequestTimeoutError(f"no answer to the lookup after {timeout_s} s")
        raise_if(self.error)
        return self.blocks

    @property
    def blocks(self) -> int:
        """Blocks found, from the first on; 0 before the answer and after a failure."""
        return self._native.blocks if self._native is not None and self._native.done else 0

    @property
    def lease_ids(self) -> list[int]:
        """The leases that pin what was found: one for each 4,096 keys."""
        return self._native.lease_ids if self._native is not None and self._native.done else []

    @property
    def lease_id(self) -> int:
        """The first of `lease_ids`; 0: none."""
        ids = self.lease_ids
        return ids[0] if ids else 0

    @property
    def error(self) -> InfiniStoreError | None:
        """What went wrong; None: nothing, so far."""
        if self._native is None or not self._native.done:
            return None
        return failure_of(self._native)

    @property
    def native(self) -> NativeCall | None:
        """For whoever waits in another way; None: there is nothing to wait for."""
        return self._native

    def cancel(self) -> None:
        """Drops the question, and any lease that it would take."""
        if self._native is not None:
            self._native.cancel()

    def __reduce__(self) -> str:
        raise _no_pickle("a lookup in flight")


def await_end(batch: Batch, timeout_s: float | None) -> None:
    """As `Batch.wait()`, for whoever has taken it from its session."""
    batch._await_end(timeout_s)


def first_error(batches: Sequence[Batch]) -> InfiniStoreError | None:
    """What to raise for ended batches: the first failure, or else all missing keys at once."""
    errors = [error for batch in batches if (error := batch.error()) is not None]
    misses = [error for error in errors if isinstance(error, KeyNotFound)]
    if len(misses) < len(errors):
        return next(error for error in errors if not isinstance(error, KeyNotFound))
    if len(misses) < 2:
        return misses[0] if misses else None
    keys = tuple(key for miss in misses for key in miss.keys)
    whole = KeyNotFound(f"{_count(len(keys))} not found: {_names(keys)}", keys)
    whole.outcomes = misses[0].outcomes
    return whole


def raise_if(error: InfiniStoreError | None) -> None:
    """Raises it, and is the only frame that had a name for it.

    An exception and a frame that names it would hold each other, and the caller's cache with them,
    until Python collects cycles.
    """
    try:
        if error is not None:
            raise error
    finally:
        del error


def failure_of(call: NativeCall) -> InfiniStoreError | None:
    """The exception for a call that failed as a whole."""
    code, message = call.failure
    return None if code == Code.OK else error_for(code, message)


def _no_pickle(what: str) -> InfiniStoreError:
    return UsageError(f"{what} cannot be pickled; send its outcome, and connect in each process")


def _count(number: int) -> str:
    return f"{number} key" if number == 1 else f"{number} keys"


def _names(keys: Sequence[bytes], total: int | None = None) -> str:
    shown = ", ".join(repr(_readable(key)) for key in keys[:_NAMED_KEYS_MAX])
    more = (len(keys) if total is None else total) - min(len(keys), _NAMED_KEYS_MAX)
    return shown + (f" and {more} more" if more > 0 else "")


def _readable(key: bytes) -> str | bytes:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key
