"""Epochs of an engine's weights: which of its blocks were computed by the weights of now.

Weights that change in a running engine (reinforcement learning, reload, sleep and wake) make a new
epoch; its blocks live in a namespace of their own: docs/model-updates.md.
"""

from __future__ import annotations

import re
import secrets
import weakref
from collections.abc import Iterable
from typing import Any

from infinistore.errors import UsageError
from infinistore.keys import EPOCH

VARIABLE = "INFINISTORE_WEIGHTS_EPOCH"
ON_RESET = ("new", "keep")
_NAME = re.compile(r"[A-Za-z0-9._:+-]{1,64}")

# The connectors of this process: of an engine's scheduler, of its worker, or both.
_connectors: weakref.WeakSet[Any] = weakref.WeakSet()


def checked(epoch: str) -> str:
    """The name itself. Raises `UsageError` for one that no namespace can hold."""
    if not isinstance(epoch, str) or not _NAME.fullmatch(epoch):
        raise UsageError(
            f"weights epoch {epoch!r}: give 1 to 64 letters, digits or . _ : + -, such as step-120"
        )
    return epoch


def private() -> str:
    """A name that no other engine has."""
    return f"private-{secrets.token_hex(8)}"


def namespace_in(namespace: str, epoch: str) -> str:
    """The namespace of an epoch's blocks; of the weights as they were loaded: "" """
    return f"{namespace}{EPOCH}{epoch}" if epoch else namespace


def register(connector: Any) -> None:
    """Makes a connector hear of epochs; it is forgotten with its engine."""
    _connectors.add(connector)


def set_weights_epoch(epoch: str | None) -> int:
    """Says which weights the engine in this process has; how many connectors heard it.

    None: they are about to change. Nothing is loaded or saved from now until they have a name.
    Engines of the same name share blocks: same name, same weights. Call it in every worker process.
    """
    if epoch is not None:
        checked(epoch)
    connectors = list(_connectors)
    for connector in connectors:
        connector.set_weights_epoch(epoch)
    return len(connectors)


class WorkerExtension:
    """For vLLM's `worker_extension_cls`: collective_rpc("set_weights_epoch", args=("step-7",))."""

    def set_weights_epoch(self, epoch: str | None) -> int:
        """See the function."""
        return set_weights_epoch(epoch)


class OldBlocks:
    """What the engine's own memory may hold of earlier weights: nothing built on it is saved."""

    def __init__(self) -> None:
        self._holders: set[str] = set()  # requests that have blocks
        self._suspects: set[str] = set()  # those that may be computed from old ones
        self._is_cache_old = False  # the engine's own prefix cache may have old blocks
        self._blockers: set[str] | None = None  # who held blocks when the engine tried to empty it

    def allocated(self, request_id: str, local_tokens: int) -> None:
        """A request gets blocks; so many of its tokens come from the engine's own cache."""
        self._holders.add(request_id)
        if self._is_cache_old and local_tokens > 0:
            self._suspects.add(request_id)

    def ended(self, request_id: str) -> None:
        """A request is over; what it computed may stay in the engine's cache."""
        self._holders.discard(request_id)
        self._suspects.discard(request_id)

    def step(self, preempted: Iterable[str]) -> None:
        """A step is made; before it these lost their blocks."""
        gone = set(preempted)
        self._holders -= gone
        self._suspects -= gone
        # It is emptied only if nobody holds a block of it: who did was preempted for that.
        if self._blockers is not None and self._blockers <= gone:
            self._is_cache_old = False
        self._blockers = None

    def weights_changed(self) -> None:
        """All that is there now was computed by others."""
        self._suspects = set(self._holders)
        self._is_cache_old = True

    def cache_was_reset(self) -> None:
        """The engine has tried to empty its cache."""
        self._blockers = set(self._holders)
        if not self._blockers:
            self._is_cache_old = False

    def is_under(self, request_id: str) -> bool:
        """Whether a request may be computed from old blocks."""
        return request_id in self._suspects
