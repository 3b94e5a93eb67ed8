"""Fleet: the upstreams of one role, their health, and the requests in flight to each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from infinistore.router import choice
from infinistore.router.prefixes import Prefixes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

log = logging.getLogger(__name__)


class Upstream:
    """One vLLM server as the router sees it. Belongs to the event loop's thread."""

    def __init__(self, role: str, url: str, back_off: choice.BackOff) -> None:
        """Starts as up: the first request or probe finds out."""
        self.role = role
        self.url = url
        self.health = choice.Health()
        self.in_flight = 0
        self.last_turn = 0
        self.deaths = 0  # each took its cache with it
        self._back_off = back_off
        self._died = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """Whether it is in rotation."""
        return self.health.standing is choice.Standing.UP

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Counts one request in flight."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    async def wait_dead(self) -> None:
        """Returns when another request or a probe has found it dead."""
        await self._died.wait()

    def note_failed(self, reason: str, *, is_dead: bool = True) -> None:
        """Takes it out of rotation; a probe brings it back.

        `is_dead`: nothing that is in flight to it will come back either.
        """
        was_up = self.is_up
        now_s = time.monotonic()
        self.health = choice.failed(self.health, now_s, self._back_off)
        if is_dead:
            self._died.set()
            self.deaths += 1
        if was_up:
            wait_s = self.health.retry_at_s - now_s
            log.warning("%s %s is down (%s); probe in %.1f s", self.role, self.url, reason, wait_s)

    def note_worked(self) -> None:
        """A request was answered."""
        self._set_up(choice.worked(self.health))

    def note_probed(self, *, answered: bool, reason: str = "") -> None:
        """A probe came back, or did not in time."""
        health = choice.probed(self.health, answered=answered)
        if health is None:
            self.note_failed(reason)
        else:
            self._set_up(health)

    def _set_up(self, health: choice.Health) -> None:
        if not self.is_up and health.standing is choice.Standing.UP:
            self._died.clear()
            log.info("%s %s is back", self.role, self.url)
        self.health = health


class Fleet:
    """The servers of one role."""

    def __init__(
        self, role: str, urls: Sequence[str], back_off: choice.BackOff, prefix_slack: int
    ) -> None:
        """Makes an upstream of each URL."""
        self.upstreams = [Upstream(role, url, back_off) for url in urls]
        self.by_prefix = 0  # how often one was chosen that shares more of the prompt than another
        self._prefix_slack = prefix_slack
        self._prefixes = Prefixes()
        self._deaths = [0] * len(self.upstreams)  # as of which `_prefixes` is
        self._turn = 0

    def choose(
        self,
        pieces: Sequence[bytes] = (),
        *,
        excluded: Collection[Upstream] = (),
        even_down: bool = False,
    ) -> Upstream | None:
        """The one for a prompt of these pieces; see `choice.choose`."""
        shared = self._shared(pieces)
        loads = [
            choice.Load(u.health, u.in_flight, u.last_turn, count)
            for u, count in zip(self.upstreams, shared, strict=True)
        ]
        skipped = [index for index, u in enumerate(self.upstreams) if u in excluded]
        index = choice.choose(
            loads, excluded=skipped, even_down=even_down, prefix_slack=self._prefix_slack
        )
        if index is None:
            return None
        self.by_prefix += shared[index] > min(shared)
        if len(self.upstreams) > 1:
            self._prefixes.note(pieces, index)
        self._turn += 1
        self.upstreams[index].last_turn = self._turn
        return self.upstreams[index]

    def _shared(self, pieces: Sequence[bytes]) -> list[int]:
        for index, upstream in enumerate(self.upstreams):
            if upstream.deaths != self._deaths[index]:
                self._deaths[index] = upstream.deaths
                self._prefixes.forget(index)
        return self._prefixes.shared(pieces, len(self.upstreams))

    @property
    def up_count(self) -> int:
        """How many are in rotation."""
        return sum(upstream.is_up for upstream in self.upstreams)
