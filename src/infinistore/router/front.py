"""Front: the router's HTTP side; a request goes to a prefill, then to a decode, and back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from infinistore._compat import timeout, timeout_at
from infinistore.router import bodies
from infinistore.router.choice import BackOff
from infinistore.router.decode import (
    Answer,
    DecodeAsker,
    NoDecodeError,
    StreamBrokenError,
    with_deadline,
)
from infinistore.router.fleet import Fleet, Upstream
from infinistore.router.http import (
    REQUEST_ID,
    UPSTREAM_ERRORS,
    AnswerTooLargeError,
    open_session,
    read_bounded,
    request_id,
    upstream_headers,
)
from infinistore.router.metrics import RouterMetrics
from infinistore.router.prefill import PrefillAsker
from infinistore.router.prefixes import prompt_pieces
from infinistore.router.probe import Prober
from infinistore.router.request import RoutedRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from infinistore.router.settings import RouterSettings

log = logging.getLogger(__name__)
access_log = logging.getLogger("infinistore.router.access")

# A client that announces a body sends it: the connection is not ours to hold open for less.
_BODY_TIMEOUT_S = 60.0

GENERATE = ("/v1/completions", "/v1/chat/completions")
# Answered by one decode server: there is nothing for a prefill to save.
PASSED_ON = ("/v1/embeddings", "/v1/score", "/v1/rerank", "/tokenize", "/detokenize")


def _error(status: int, kind: str, message: str, **headers: str) -> web.Response:
    return web.json_response(
        bodies.error_body(message, kind, status), status=status, headers=headers
    )


class Front:
    """The routes, and all they need; lives as long as its web application."""

    def __init__(self, settings: RouterSettings) -> None:
        """Makes the fleets; connections are opened when the application starts."""
        back_off = BackOff(settings.back_off_min_s, settings.back_off_max_s)
        self._settings = settings
        self._metrics = RouterMetrics()
        slack = settings.prefix_slack
        self._prefills = Fleet("prefill", settings.prefill_urls, back_off, slack)
        self._decodes = Fleet("decode", settings.decode_urls, back_off, slack)
        self._session: aiohttp.ClientSession
        self._prefill: PrefillAsker
        self._decode: DecodeAsker

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=self._settings.request_bytes_max)
        for path in (*GENERATE, *PASSED_ON):
            app.router.add_post(path, self.serve)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.cleanup_ctx.append(self._life)
        return app

    async def _life(self, _app: web.Application) -> AsyncIterator[None]:
        async with open_session(self._settings) as session:
            self._session = session
            self._prefill = PrefillAsker(self._prefills, session, self._settings, self._metrics)
            self._decode = DecodeAsker(self._decodes, session, self._settings, self._metrics)
            prober = asyncio.create_task(Prober(self._upstreams, session, self._settings).run())
            try:
                yield
            finally:
                prober.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await prober

    @property
    def _upstreams(self) -> list[Upstream]:
        return [*self._prefills.upstreams, *self._decodes.upstreams]

    # Completions, chat, and what is passed on

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """POST of any path in `GENERATE` and `PASSED_ON`."""
        metrics = self._metrics
        if metrics.in_flight >= self._settings.in_flight_max:
            metrics.requests["overloaded"] += 1
            message = f"the router already serves {metrics.in_flight} requests"
            return _error(429, "overloaded_error", message, **{"Retry-After": "1"})
        metrics.in_flight += 1
        outcome = "cancelled"  # until something else is known: cancellation comes from anywhere
        began_s = asyncio.get_running_loop().time()
        identity = request_id(request.headers)
        headers = upstream_headers(request.headers, identity)
        routed = RoutedRequest(identity, request.path, {}, headers)
        try:
            body = await self._read(request)
            if isinstance(body, web.Response):
                outcome = "invalid"
                return body
            routed.body = body
            response = await self._serve(request, routed)
            outcome = "ok" if response.status < 400 else "refused"
            return response
        except NoDecodeError as error:
            outcome = "failed"
            log.warning("request %s: no decode server answered: %s", identity, error)
            # Which ones and why is the operator's to know: the log has it, the client does not.
            count = len(self._decodes.upstreams)
            message = f"no decode server answered (of {count}); the router's log says why"
            return _error(503, "service_unavailable", message, **{"Retry-After": "1"})
        except asyncio.TimeoutError:
            outcome = "failed"
            limit_s = self._settings.request_timeout_s
            return _error(504, "timeout_error", f"the request took longer than {limit_s:g} s")
        except _StreamFailedError as error:
            outcome = "failed"
            return error.response
        except ConnectionResetError:  # the client went away, or stopped to read
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=499)
        finally:
            metrics.in_flight -= 1
            metrics.requests[outcome] += 1
            if self._settings.access_log:
                total_s = asyncio.get_running_loop().time() - began_s
                access_log.info("%s", routed.log_line(outcome, total_s))

    async def _read(self, request: web.Request) -> bodies.JsonObject | web.Response:
        """The request's JSON object, or the refusal."""
        try:
            async with timeout(_BODY_TIMEOUT_S):
                raw = await request.read()
            return bodies.parse_request(raw)
        except web.HTTPRequestEntityTooLarge:
            limit = self._settings.request_bytes_max
            return _error(413, "invalid_request_error", f"the body is larger than {limit} bytes")
        except asyncio.TimeoutError:
            message = f"the body did not arrive within {_BODY_TIMEOUT_S:g} s"
            return _error(408, "timeout_error", message)
        except ValueError as error:
            return _error(400, "invalid_request_error", str(error))

    async def _serve(self, request: web.Request, routed: RoutedRequest) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        deadline_s = began_s + self._settings.request_timeout_s
        async with contextlib.AsyncExitStack() as stack:
            async with timeout_at(deadline_s):
                body = await self._prepare(routed)
                answer = await stack.enter_async_context(self._decode.ask(routed, body))
            routed.first_byte_s = loop.time() - began_s
            self._metrics.first_byte_s.observe(routed.first_byte_s)
            reply_headers = {"Content-Type": answer.content_type, REQUEST_ID: routed.identity}
            if answer.rest is None:
                return web.Response(status=answer.status, body=answer.first, headers=reply_headers)
            response = web.StreamResponse(status=answer.status, headers=reply_headers)
            response.headers["Cache-Control"] = "no-cache"
            await self._stream(request, response, answer, deadline_s)
            return response

    async def _prepare(self, routed: RoutedRequest) -> bodies.JsonObject:
        """Has the prompt prefilled, where there is one; the body for decode."""
        if routed.path in PASSED_ON:
            return routed.body
        if max(len(self._prefills.upstreams), len(self._decodes.upstreams)) > 1:
            routed.pieces = prompt_pieces(routed.body)
        return bodies.decode_body(routed.body, await self._prefill.ask(routed))

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        answer: Answer,
        deadline_s: float,
    ) -> None:
        """Sends the answer on as it comes, byte for byte; a failure becomes a last event."""
        await response.prepare(request)
        tail = b""
        try:
            async for part in with_deadline(answer, deadline_s):
                await self._write(response, part)
                tail = (tail + part)[-2:]
        except StreamBrokenError as error:
            log.warning("request %s: its stream broke: %s", response.headers[REQUEST_ID], error)
            message, kind, status = f"the decode server failed: {error}", "upstream_error", 502
        except asyncio.TimeoutError:
            limit_s = self._settings.request_timeout_s
            message = f"the request took longer than {limit_s:g} s"
            kind, status = "timeout_error", 504
        else:
            await response.write_eof()
            return
        if tail == b"\n\n":
            # No [DONE] follows: a client that overlooks the event still sees no regular end.
            await self._write(response, bodies.error_event(message, kind, status))
            await response.write_eof()
        elif request.transport is not None:
            # Cut within an event, where no error can be told apart from data: only the end can.
            request.transport.abort()
        raise _StreamFailedError(response)

    async def _write(self, response: web.StreamResponse, part: bytes) -> None:
        try:
            async with timeout(self._settings.client_stall_s):
                await response.write(part)
        except asyncio.TimeoutError as error:
            raise ConnectionResetError("the client does not read") from error

    # The rest

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models: from the first server that answers, decode before prefill."""
        headers = upstream_headers(request.headers, request_id(request.headers))
        upstreams = [*self._decodes.upstreams, *self._prefills.upstreams]
        for upstream in sorted(upstreams, key=lambda u: not u.is_up):
            try:
                async with (
                    timeout(self._settings.probe_timeout_s),
                    self._session.get(upstream.url + "/v1/models", headers=headers) as response,
                ):
                    if response.status < 500:
                        return web.Response(
                            status=response.status,
                            body=await read_bounded(
                                response.content, self._settings.answer_bytes_max
                            ),
                            content_type="application/json",
                        )
            except (*UPSTREAM_ERRORS, AnswerTooLargeError):
                continue
        return _error(503, "service_unavailable", "no server answered /v1/models")

    async def health(self, _request: web.Request) -> web.Response:
        """GET /health: 200 while a decode server is up; the body says which are."""
        prefill_up, decode_up = self._prefills.up_count, self._decodes.up_count
        all_up = prefill_up + decode_up == len(self._upstreams)
        status = "unavailable" if not decode_up else "ok" if all_up else "degraded"
        table = {
            fleet[0].role: [
                {"url": u.url, "standing": u.health.standing.value, "in_flight": u.in_flight}
                for u in fleet
            ]
            for fleet in (self._prefills.upstreams, self._decodes.upstreams)
            if fleet
        }
        return web.Response(
            text=json.dumps({"status": status, **table}),
            status=200 if decode_up else 503,
            content_type="application/json",
        )

    async def metrics(self, _request: web.Request) -> web.Response:
        """GET /metrics: Prometheus text."""
        table = [(u.role, u.url, u.is_up, u.in_flight) for u in self._upstreams]
        by_prefix = {"prefill": self._prefills.by_prefix, "decode": self._decodes.by_prefix}
        return web.Response(
            body=self._metrics.text(table, by_prefix).encode(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )


class _StreamFailedError(Exception):
    """A stream that ended in an error event; the client has all that there is to say."""

    def __init__(self, response: web.StreamResponse) -> None:
        super().__init__("the stream ended in an error event")
        self.response = response
