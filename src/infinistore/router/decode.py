"""Asking a decode server: the client gets the answer of the first that begins to answer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING

import aiohttp

from infinistore._compat import timeout
from infinistore.router.bodies import is_stream
from infinistore.router.http import UPSTREAM_ERRORS, AnswerTooLargeError, read_bounded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from infinistore.router.bodies import JsonObject
    from infinistore.router.fleet import Fleet, Upstream
    from infinistore.router.metrics import RouterMetrics
    from infinistore.router.request import RoutedRequest
    from infinistore.router.settings import RouterSettings

log = logging.getLogger(__name__)

# A request that fails everywhere must not walk through a whole fleet.
ATTEMPTS_MAX = 3
_GATEWAY_ERRORS = (502, 503, 504)


class NoDecodeError(Exception):
    """No decode server could be made to answer."""


class StreamBrokenError(Exception):
    """The decode server went away in the middle of an answer that the client already reads."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What a decode server answered: whole in `first`, or `first` and then `rest`."""

    status: int
    content_type: str
    first: bytes
    rest: AsyncIterator[bytes] | None = None


class DecodeAsker:
    """Sends a request to a decode server, and to another as long as the client has seen nothing."""

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

    @contextlib.asynccontextmanager
    async def ask(self, request: RoutedRequest, body: JsonObject) -> AsyncIterator[Answer]:
        """Yields the answer to the request with this body.

        Leaving the block ends the upstream's request, finished or not.
        Raises `NoDecodeError` if nobody answered. A server's own refusal is an answer; one that
        another server might not give (5xx, too busy) is passed on only if nobody does better.
        """
        tried: list[Upstream] = []
        reasons: list[str] = []
        refusal: Answer | None = None
        async with contextlib.AsyncExitStack() as stack:
            while len(tried) < ATTEMPTS_MAX:
                upstream = self._fleet.choose(request.pieces, excluded=tried, even_down=True)
                if upstream is None:
                    break
                tried.append(upstream)
                attempt = await stack.enter_async_context(contextlib.AsyncExitStack())
                attempt.enter_context(upstream.busy())
                try:
                    answer = await self._begin(attempt, upstream, request, body)
                except (*UPSTREAM_ERRORS, AnswerTooLargeError) as error:
                    reason = str(error) or type(error).__name__
                    reasons.append(f"{upstream.url}: {reason}")
                    self._count(upstream, "failed")
                    upstream.note_failed(reason)
                    await attempt.aclose()
                    continue
                self._note(upstream, answer.status)
                if answer.status < 500 and answer.status != 429:
                    request.decode = upstream.url
                    yield answer
                    return
                refusal = answer
                await attempt.aclose()
            if refusal is None:
                raise NoDecodeError("; ".join(reasons) or "none is configured")
            yield refusal

    async def _begin(
        self,
        attempt: contextlib.AsyncExitStack,
        upstream: Upstream,
        request: RoutedRequest,
        body: JsonObject,
    ) -> Answer:
        """The whole answer, or a stream's first bytes: until then another server may take over."""
        settings = self._settings
        response = await attempt.enter_async_context(
            self._session.post(
                upstream.url + request.path,
                json=body,
                headers=request.headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    sock_connect=settings.connect_timeout_s,
                    sock_read=settings.decode_idle_timeout_s,
                ),
            )
        )
        content_type = response.headers.get("Content-Type", "application/json")
        if not (is_stream(body) and response.status == 200):
            whole = await read_bounded(response.content, settings.answer_bytes_max)
            return Answer(response.status, content_type, whole)
        parts = response.content.iter_any()
        first = await anext(parts, b"")
        return Answer(response.status, content_type, first, self._rest(upstream, parts))

    async def _rest(self, upstream: Upstream, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for part in parts:
                yield part
        except UPSTREAM_ERRORS as error:
            reason = str(error) or type(error).__name__
            self._count(upstream, "broken")
            upstream.note_failed(reason)
            raise StreamBrokenError(f"{upstream.url}: {reason}") from error

    def _note(self, upstream: Upstream, status: int) -> None:
        if status in _GATEWAY_ERRORS:
            upstream.note_failed(f"HTTP {status}")
        elif status < 500:
            upstream.note_worked()
        # A plain 500 may be this request's own doing; probes say whether the server is well.
        self._count(upstream, "ok" if status < 400 else "refused" if status < 500 else "failed")

    def _count(self, upstream: Upstream, outcome: str) -> None:
        self._metrics.decodes[upstream.url, outcome] += 1


async def with_deadline(answer: Answer, deadline_s: float) -> AsyncIterator[bytes]:
    """The answer's bytes, until the request's whole time is up: then `TimeoutError`."""
    yield answer.first
    if answer.rest is None:
        return
    loop = asyncio.get_running_loop()
    while True:
        async with timeout(deadline_s - loop.time()):
            part = await anext(answer.rest, None)
        if part is None:
            return
        yield part
