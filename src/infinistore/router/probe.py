"""Prober: looks at every upstream's /health, and brings back those that were down."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import aiohttp

from infinistore._compat import timeout
from infinistore.router import choice
from infinistore.router.http import UPSTREAM_ERRORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infinistore.router.fleet import Upstream
    from infinistore.router.settings import RouterSettings


class Prober:
    """One task for each upstream, so that a hanging one delays no other's probe."""

    def __init__(
        self,
        upstreams: Sequence[Upstream],
        session: aiohttp.ClientSession,
        settings: RouterSettings,
    ) -> None:
        """Borrows all three."""
        self._upstreams = upstreams
        self._session = session
        self._settings = settings

    async def run(self) -> None:
        """Probes until it is cancelled."""
        await asyncio.gather(*(self._watch(upstream) for upstream in self._upstreams))

    async def _watch(self, upstream: Upstream) -> None:
        while True:
            await asyncio.sleep(self._wait_s(upstream))
            if choice.is_probe_due(upstream.health, time.monotonic()):
                await self._probe(upstream)

    def _wait_s(self, upstream: Upstream) -> float:
        """Until the next round, or until the end of a back-off that ends before."""
        if upstream.is_up:
            return self._settings.probe_interval_s
        until_retry_s = upstream.health.retry_at_s - time.monotonic()
        return min(max(until_retry_s, 0.05), self._settings.probe_interval_s)

    async def _probe(self, upstream: Upstream) -> None:
        try:
            async with (
                timeout(self._settings.probe_timeout_s),
                self._session.get(upstream.url + "/health", allow_redirects=False) as response,
            ):
                status = response.status
        except asyncio.TimeoutError:
            upstream.note_probed(answered=False, reason="no answer to probes")
        except UPSTREAM_ERRORS as error:
            upstream.note_failed(str(error) or type(error).__name__)
        else:
            # Any answer below 500 is a living server: one without /health says 404.
            if status < 500:
                upstream.note_probed(answered=True)
            else:
                upstream.note_failed(f"HTTP {status} on /health")
