"""Questions to the store, hardly waited for by any engine, and the leases that answers hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from infinistore.connectors.vllm.decisions import LookupView
from infinistore.errors import InfiniStoreError

if TYPE_CHECKING:
    from infinistore import Client

LEASE_S = 30.0
_RENEW_AFTER_S = 10.0
_REPEAT_AFTER_S = 0.005
# A store on this host answers in less; to be scheduled again costs the request a step.
_PATIENCE_S = 0.001


class Lookup:
    """One request's question: which of its blocks the store has; asked again while it must be."""

    def __init__(self, keys: Sequence[bytes], group: int, now_s: float) -> None:
        self.keys = list(keys)
        self.group = group
        self.first_asked_at_s = now_s
        self.asked_at_s = now_s
        self.leased_at_s = now_s
        self.taken: int | None = None  # blocks, once decided
        self.handle: Any = None
        self.is_refused = False
        self._was_awaited = False

    def view(self) -> LookupView:
        """The question's state now."""
        handle = self.handle
        is_done = self.is_refused or (handle is not None and bool(handle.done))
        is_failed = is_done and (self.is_refused or handle.error is not None)
        blocks = handle.blocks if is_done and not is_failed else 0
        return LookupView(is_done, is_failed, blocks, self.asked_at_s)

    def await_answer(self) -> bool:
        """Waits for the answer, not for long, and only once; whether it did."""
        if self.handle is None or self.handle.done or self._was_awaited:
            return False
        self._was_awaited = True
        with contextlib.suppress(InfiniStoreError):
            self.handle.wait(_PATIENCE_S)
        return True

    @property
    def lease_ids(self) -> list[int]:
        """The leases on what was found; none while or if there is no answer."""
        return list(self.handle.lease_ids) if self.handle is not None else []

    def may_repeat(self, now_s: float) -> bool:
        """Whether enough time has passed since the last question."""
        return now_s - self.asked_at_s >= _REPEAT_AFTER_S


class Lookups:
    """Asks, renews and releases; keeps what was given up until its lease can be let go."""

    def __init__(self, client: Callable[[], Client | None], clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._abandoned: list[Any] = []

    def ask(self, lookup: Lookup) -> None:
        """Sends the question; a client that is not there is a refusal."""
        self._let_go(lookup.handle)
        lookup.handle = None
        lookup.asked_at_s = lookup.leased_at_s = self._clock()
        client = self._client()
        if client is None:
            lookup.is_refused = True
            return
        try:
            lookup.handle = client.lookup(lookup.keys, group=lookup.group, lease_s=LEASE_S)
        except InfiniStoreError:
            lookup.is_refused = True

    def keep(self, lookup: Lookup) -> bool:
        """Renews the lease of an answer that waits for its use; False if it is too old to trust."""
        now = self._clock()
        age = now - lookup.leased_at_s
        if age > LEASE_S - 1:
            return False
        if age > _RENEW_AFTER_S:
            self.renew(lookup.lease_ids)
            lookup.leased_at_s = now
        return True

    def renew(self, lease_ids: Sequence[int]) -> None:
        """Keeps leases for another `LEASE_S`."""
        client = self._client()
        if client is not None and lease_ids:
            client.renew(lease_ids, LEASE_S)

    def release(self, lease_ids: Sequence[int]) -> None:
        """Lets leases go."""
        client = self._client()
        if client is not None and lease_ids:
            client.release(lease_ids)

    def abandon(self, lookup: Lookup | None) -> None:
        """Forgets a question and whatever its answer leases or will lease."""
        if lookup is not None:
            self._let_go(lookup.handle)
            lookup.handle = None

    def _let_go(self, handle: Any) -> None:
        if handle is not None:
            if not handle.done:
                handle.cancel()
            self._abandoned.append(handle)
            self.sweep()

    def sweep(self) -> None:
        """Releases the leases of given-up questions that were answered since."""
        waiting: list[Any] = []
        for handle in self._abandoned:
            if not handle.done:
                waiting.append(handle)
            else:
                self.release(handle.lease_ids)
        self._abandoned = waiting
