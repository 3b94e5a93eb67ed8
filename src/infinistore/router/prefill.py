"""Asking a prefill server: its answer says that its saves are visible; without one, no harm."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import aiohttp

from infinistore._compat import timeout
from infinistore.router import bodies
from infinistore.router.http import UPSTREAM_ERRORS, AnswerTooLargeError, read_bounded

if TYPE_CHECKING:
    from infinistore.router.bodies import JsonObject
    from infinistore.router.fleet import Fleet, Upstream
    from infinistore.router.metrics import RouterMetrics
    from infinistore.router.request import RoutedRequest
    from infinistore.router.settings import RouterSettings

log = logging.getLogger(__name__)


class _Died(Exception):
    """The server was found dead, by someone else, while this request waited for it."""


class PrefillAsker:
    """Sends a request's prompt to one prefill server and reads what it says of its saves."""

    def __init__(
        self,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        settings: RouterSettings,
        metrics: RouterMetrics,
    ) -> None:
        """Borrows all four."""
        self._fleet = fleet
        self._session = session
        self._settings = settings
        self._metrics = metrics

    async def ask(self, request: RoutedRequest) -> JsonObject | None:
        """`kv_transfer_params` for decode, or None. Never raises but on cancellation.

        A server that cannot be reached is passed over at once for the next one; one that took the
        request and failed has spent the time that a second prefill would need.
        """
        unreachable: list[Upstream] = []
        while (upstream := self._fleet.choose(request.pieces, excluded=unreachable)) is not None:
            began_s = time.monotonic()
            try:
                with upstream.busy():
                    status, answer = await self._post(upstream, request)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                self._note_failed(upstream, "unreachable", error)
                unreachable.append(upstream)
                continue
            except UPSTREAM_ERRORS as error:
                self._note_failed(upstream, "failed", error)
                return None
            except AnswerTooLargeError as error:
                self._note_failed(upstream, "failed", error)
                return None
            except _Died:
                self._count(upstream, "abandoned")
                return None
            if status >= 500:
                # Perhaps this request's doing: what others wait for may still come.
                self._note_failed(upstream, "failed", f"HTTP {status}", is_dead=False)
                return None
            upstream.note_worked()
            if status != 200:
                # The request's own fault (too long, no such model), or a busy server: decode
                # answers either way, and it is decode's word that the client needs.
                self._count(upstream, "refused")
                return None
            self._count(upstream, "ok")
            request.prefill, request.prefill_s = upstream.url, time.monotonic() - began_s
            self._metrics.prefill_s.observe(request.prefill_s)
            return bodies.transfer_params(answer) if bodies.is_one_prompt(request.body) else None
        return None

    async def _post(self, upstream: Upstream, request: RoutedRequest) -> tuple[int, bytes]:
        """Status and body, unless the server is found dead first."""
        exchange = asyncio.ensure_future(self._exchange(upstream, request))
        death = asyncio.ensure_future(upstream.wait_dead())
        try:
            await asyncio.wait((exchange, death), return_when=asyncio.FIRST_COMPLETED)
            if not exchange.done():
                raise _Died
            return exchange.result()
        finally:
            for task in (exchange, death):
                task.cancel()
            # The upstream's connection is closed when the exchange has ended, not before.
            await asyncio.gather(exchange, death, return_exceptions=True)

    async def _exchange(self, upstream: Upstream, request: RoutedRequest) -> tuple[int, bytes]:
        settings = self._settings
        async with (
            timeout(settings.prefill_timeout_s),
            self._session.post(
                upstream.url + request.path,
                json=bodies.prefill_body(request.body),
                headers=request.headers,
                allow_redirects=False,
            ) as response,
        ):
            return response.status, await read_bounded(response.content, settings.answer_bytes_max)

    def _note_failed(
        self, upstream: Upstream, outcome: str, reason: object, *, is_dead: bool = True
    ) -> None:
        self._count(upstream, outcome)
        upstream.note_failed(str(reason) or type(reason).__name__, is_dead=is_dead)

    def _count(self, upstream: Upstream, outcome: str) -> None:
        self._metrics.prefills[upstream.url, outcome] += 1
