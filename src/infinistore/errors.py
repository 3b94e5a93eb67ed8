"""Every exception that InfiniStore raises, and which wire code becomes which class."""

from __future__ import annotations

import enum
from collections.abc import Sequence


class Code(enum.IntEnum):
    """Outcome of one key, or cause of a failure; core/base/result.h and docs/protocol.md agree."""

    OK = 0
    EXISTS = 1
    MISSING = 2
    SIZE_MISMATCH = 3
    TOO_LARGE = 4
    OUT_OF_MEMORY = 5
    OVERLOADED = 6
    INVALID = 7
    UNAUTHORIZED = 8
    PROTOCOL = 9
    VERSION = 10
    DISCONNECTED = 11
    TIMEOUT = 12
    CANCELLED = 13
    CORRUPT = 14
    ABORTED = 15
    LEASE_EXPIRED = 16
    CLOSED = 17
    SETUP = 18
    DRAINING = 19
    QUOTA_EXCEEDED = 20


class InfiniStoreError(Exception):
    """The root: catches every error of ours and nothing else.

    `outcomes`: of a batch that failed, the code of each of its keys; else None.
    """

    retryable = False
    outcomes: Sequence[Code] | None = None


class UsageError(InfiniStoreError, ValueError):
    """The call is wrong: a shape, a size, a closed connection. Fix the caller."""


class ConfigError(InfiniStoreError, ValueError):
    """A setting is unknown, out of range, or at odds with another."""


class SetupError(InfiniStoreError):
    """This machine cannot: a port is taken, memory is short, a device or an extra is missing."""


class StoreError(InfiniStoreError):
    """The server understood and refused."""


class KeyNotFound(StoreError, KeyError):
    """Keys that a read needed are not in the store. `keys` names them."""

    def __init__(self, message: str, keys: tuple[bytes, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.keys = keys

    def __str__(self) -> str:  # KeyError would show the repr
        return self.message


class SizeMismatchError(StoreError):
    """A key is stored with another size than asked for."""


class TooLargeError(StoreError):
    """A value larger than the whole pool, or than its owner's quota."""


class OutOfMemoryError(StoreError):
    """Every page is pinned or reserved at this moment."""

    retryable = True


class OverloadedError(StoreError):
    """A bound on work in flight is reached."""

    retryable = True


class QuotaError(StoreError):
    """All that its quota allows the namespace's owner is being read or written at this moment."""

    retryable = True


class AuthError(StoreError):
    """The server refused the token."""


class LeaseExpiredError(StoreError):
    """The lease's deadline passed before its use."""


class CorruptError(StoreError):
    """Bytes do not match their checksum."""


class AbortedError(StoreError):
    """The staged value was dropped: idle for too long, or aborted."""

    retryable = True


class LinkError(InfiniStoreError):
    """The link failed; whether the server acted is unknown."""

    retryable = True


class ConnectError(LinkError):
    """No connection could be made."""


class DisconnectedError(LinkError):
    """The connection ended before the answer."""


class RequestTimeoutError(LinkError, TimeoutError):
    """No answer in time."""


class ProtocolError(InfiniStoreError):
    """The peer broke the protocol, or speaks another version; the connection is closed."""


CODE_TO_ERROR: dict[Code, type[InfiniStoreError]] = {
    Code.MISSING: KeyNotFound,
    Code.SIZE_MISMATCH: SizeMismatchError,
    Code.TOO_LARGE: TooLargeError,
    Code.OUT_OF_MEMORY: OutOfMemoryError,
    Code.OVERLOADED: OverloadedError,
    Code.INVALID: UsageError,
    Code.UNAUTHORIZED: AuthError,
    Code.PROTOCOL: ProtocolError,
    Code.VERSION: ProtocolError,
    Code.DISCONNECTED: DisconnectedError,
    Code.TIMEOUT: RequestTimeoutError,
    Code.CANCELLED: InfiniStoreError,
    Code.CORRUPT: CorruptError,
    Code.ABORTED: AbortedError,
    Code.LEASE_EXPIRED: LeaseExpiredError,
    Code.CLOSED: UsageError,
    Code.SETUP: SetupError,
    Code.DRAINING: OverloadedError,
    Code.QUOTA_EXCEEDED: QuotaError,
}


def error_for(code: int, message: str) -> InfiniStoreError:
    """The exception for a failure code, with the message as given."""
    return CODE_TO_ERROR.get(Code(code), InfiniStoreError)(message)
