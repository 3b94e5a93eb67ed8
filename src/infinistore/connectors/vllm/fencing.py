"""Ending batches for good: a transfer is over when no byte of it can move any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from infinistore.errors import RequestTimeoutError

_CANCEL_S = 1.0  # a cancelled batch is soon done; one that is not has a client in trouble


def fence(batches: Iterable[Any], drop_link: Callable[[], None]) -> None:
    """Ends batches now and returns when all of them are done.

    `drop_link` closes their client, which ends whatever does not end when it is cancelled.
    """
    unfinished = [batch for batch in batches if not batch.done]
    for batch in unfinished:
        batch.cancel()
    for batch in unfinished:
        try:
            batch.wait(_CANCEL_S)
        except RequestTimeoutError:
            drop_link()
            return
